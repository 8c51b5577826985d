"""K3's chat format (XTML) as token ids, with the loss weight of every token: 0 for what is given, 1 for
what the assistant writes, more for the crux of an answer.

Each piece of a tag is encoded on its own, exactly as the renderer does, so that training ids and
served ids are the same. A conversation grows left to right; `Conversation.ids` is the prompt so far.
"""
import functools, json
from tok import CLOSE, EOM, MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END, MEDIA_PAD, OPEN, SEP

EFFORT = ("`thinking_effort` guides on how much to think in your thinking channel (not including the "
          "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
          "Now the system is invoked with `thinking_effort={}`.")
DECLARE = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"


# weights of the crux; the training log tells the kinds apart by them. The first digit of a code decides
# which code it is ("lookup"), the others follow from it. Of sorting while thinking: "order", the comparisons, and
# "insert", where an item goes into the list.
HARD = {"arithmetic": 3.0, "lookup": 8.0, "recall": 2.5, "list": 2.0, "order": 4.0, "insert": 3.5}


class Format:
    """Caches the ids of tags for one tokenizer."""
    def __init__(self, tokenizer):
        self.enc, self.bytes = tokenizer.encode, tokenizer.bytes
        self.open = functools.lru_cache(4096)(self._open)
        self.close = functools.lru_cache(64)(self._close)
        self.effort = functools.lru_cache(8)(self._effort)

    def _open(self, tag, *attrs):
        ids = [OPEN] + self.enc(tag)
        for key, value in attrs:
            value = value.replace("&", "&amp;").replace('"', "&quot;")
            ids += self.enc(" " + key) + self.enc('="') + self.enc(value) + self.enc('"')
        return ids + [SEP]

    def _close(self, tag):
        return [CLOSE] + self.enc(tag) + [SEP]

    def _effort(self, level):
        return (self.open("message", ("role", "system"), ("type", "thinking-effort"))
                + self.enc(EFFORT.format(level)) + self.close("message") + [EOM])


class Conversation:
    """thinking: None (off) or an effort level. pictures: [(index of the first pad, picture)]."""
    def __init__(self, fmt, thinking, tools=None, system=None):
        self.fmt, self.thinking = fmt, thinking
        self.ids, self.weight, self.pictures = [], [], []
        if tools:
            text = DECLARE.format(json.dumps(tools, sort_keys=True, separators=(",", ":"),
                                             ensure_ascii=False))
            self.add(fmt.open("message", ("role", "system"), ("type", "tool-declare")))
            self.add(fmt.enc(text) + fmt.close("message") + [EOM])
        if thinking:
            self.add(fmt.effort(thinking))
        if system:
            self.add(fmt.open("message", ("role", "system")) + fmt.enc(system)
                     + fmt.close("message") + [EOM])

    def add(self, ids, weight=0.0):
        self.ids += ids
        self.weight += [weight] * len(ids)

    def message(self, attrs, parts):
        """parts: str, list of ids (already encoded text) or an object with .size and .tokens."""
        self.add(self.fmt.open("message", *attrs))
        for part in [parts] if isinstance(parts, str) else parts:
            if isinstance(part, str):
                self.add(self.fmt.enc(part))
            elif isinstance(part, list):
                self.add(part)
            else:
                self.add([MEDIA_BEGIN] + self.fmt.enc("image %dx%d" % part.size) + [MEDIA_CONTENT])
                self.pictures.append((len(self.ids), part))
                self.add([MEDIA_PAD] * part.tokens + [MEDIA_END])
        self.add(self.fmt.close("message") + [EOM])

    def user(self, parts):
        self.message((("role", "user"),), parts)

    def tool_result(self, name, index, text):
        self.message((("role", "tool"), ("tool", name), ("index", str(index))), text)

    def generation_prompt(self):
        self.add(self.fmt.open("message", ("role", "assistant"))
                 + self.fmt.open("think" if self.thinking else "response"))

    def emphasise(self, start, cruxes):
        """Raises the weights of every crux: its first occurrence after the one before, from id `start`."""
        parts = [self.fmt.bytes[i] if i < len(self.fmt.bytes) else b"\0" for i in self.ids[start:]]
        text, at = b"".join(parts), 0
        for crux, kind in cruxes:
            a = text.find(crux.encode(), at)
            assert a >= 0, (crux, text)
            at, b = a + len(crux), 0
            for k, part in enumerate(parts):
                if b < at and b + len(part) > a:
                    self.weight[start + k] = HARD[kind]
                b += len(part)

    def answer(self, turn):
        """The assistant's answer to a turn, its crux emphasised."""
        start = len(self.ids)
        self.assistant(turn.think, turn.response, turn.calls)
        self.emphasise(start, self.thinking and turn.think_crux or turn.crux)

    def assistant(self, think, response, calls=()):
        """The generation prompt (no loss) and the answer (loss 1). Returns the answer's ids."""
        self.generation_prompt()
        f, a = self.fmt, []
        if self.thinking:
            a += f.enc(think) + f.close("think") + f.open("response")
        a += (response if isinstance(response, list) else f.enc(response)) + f.close("response")
        if calls:
            a += f.open("tools")
            for i, (name, args) in enumerate(calls):
                a += f.open("call", ("tool", name), ("index", str(i + 1)))
                for key, kind, value in args:
                    a += f.open("argument", ("key", key), ("type", kind)) + f.enc(value)
                    a += f.close("argument")
                a += f.close("call")
            a += f.close("tools")
        a += f.close("message") + [EOM]
        self.add(a, 1.0)
        return a
