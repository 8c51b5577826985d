"""A JSON Schema checker for the keywords of the verifier's cases; an unknown keyword is an error, so nothing passes
unchecked. Numbers: 1.0 is an integer, booleans are no numbers (JSON Schema 2020-12)."""
import re

KNOWN = {"$id", "$defs", "definitions", "$ref", "type", "properties", "required", "additionalProperties", "items", "anyOf", "oneOf",
         "enum", "const", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "title", "description",
         "default", "pattern"}


def is_type(value, name):
    return {"string": isinstance(value, str), "boolean": isinstance(value, bool), "null": value is None,
            "object": isinstance(value, dict), "array": isinstance(value, list),
            "number": isinstance(value, (int, float)) and not isinstance(value, bool),
            "integer": not isinstance(value, bool) and (isinstance(value, int) or
                                                        (isinstance(value, float) and value.is_integer()))}[name]


def same(a, b):
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def resolve(ref, root):
    at = root
    for part in ref.removeprefix("#").split("/")[1:]:
        at = at[part.replace("~1", "/").replace("~0", "~")]
    return at


def valid(value, schema, root):
    if isinstance(schema, bool):
        return schema
    unknown = set(schema) - KNOWN
    if unknown:
        raise AssertionError(f"the checker does not know {unknown}")
    if "$ref" in schema and not valid(value, resolve(schema["$ref"], root), root):
        return False
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(is_type(value, n) for n in names):
            return False
    if "enum" in schema and not any(same(value, e) for e in schema["enum"]):
        return False
    if "const" in schema and not same(value, schema["const"]):
        return False
    if "anyOf" in schema and not any(valid(value, s, root) for s in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(valid(value, s, root) for s in schema["oneOf"]) != 1:
        return False
    if isinstance(value, str) and not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1 << 60):
        return False
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        return False
    if is_type(value, "number") and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return False
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 60):
            return False
        if "items" in schema and not all(valid(v, schema["items"], root) for v in value):
            return False
    if isinstance(value, dict):
        declared, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        if not set(schema.get("required", [])) <= set(value):
            return False
        for k, v in value.items():
            if not valid(v, declared[k] if k in declared else rest, root):
                return False
    return True
