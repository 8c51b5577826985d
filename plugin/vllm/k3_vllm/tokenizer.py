"""Kimi-K3's tokenizer for vLLM, from the checkpoint's own files, without remote code.

Text -> ids and chat -> ids are libk3's, so that vLLM and `k3 serve` build the same prompt. The way
back is a table: ranks from tiktoken.model, names of special ids from tokenizer_config.json.
Vocabulary strings use the GPT-2 byte alphabet, which grammar back ends expect of a byte-level
vocabulary.
"""

import base64
import json
import os
from collections.abc import Sequence
from functools import cached_property

from transformers import BatchEncoding

from k3_vllm import lib

PLACEHOLDER = "<|kimi_image_placeholder|>"
MEDIA_PAD = "<|media_pad|>"
N_SPECIAL = 256

# What vLLM passes to apply_chat_template: to the chat format, to the request, or about the call itself.
TEMPLATE_KEYS = ("thinking", "thinking_effort", "enable_thinking", "reasoning_effort")
REQUEST_KEYS = ("tool_choice", "add_generation_prompt", "continue_final_message")
IGNORED_KEYS = ("tokenize", "return_dict", "chat_template", "cohere_format")  # the last comes with every request


class K3Tokenizer:
    """vLLM's TokenizerLike; registered for the tokenizer mode that vLLM picks for K3."""

    is_fast = True  # merging is native; vLLM only uses this for a warning
    truncation_side = "left"
    vocab_files_names = {"vocab_file": "tiktoken.model"}

    def __init__(self, path: str, truncation_side: str = "left"):
        self.name_or_path = path
        self.truncation_side = truncation_side
        with open(os.path.join(path, "tiktoken.model"), "rb") as file:
            ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file)}
        with open(os.path.join(path, "tokenizer_config.json"), encoding="utf-8") as file:
            config = json.load(file)
        base = len(ranks)
        named = {int(key): value for key, value in config["added_tokens_decoder"].items()}
        names = {
            i: named[i]["content"] if i in named else f"<|reserved_token_{i}|>" for i in range(base, base + N_SPECIAL)
        }
        self._special_ids = {name: i for i, name in names.items()}
        self._hidden_ids = {i for i, value in named.items() if value.get("special")}
        self._bytes = [b""] * base + [names[i].encode() for i in range(base, base + N_SPECIAL)]
        for token, rank in ranks.items():
            self._bytes[rank] = token
        self._text = lib.Text(path)
        self._base = base
        with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
            ids = json.load(file)
        self.bos_token_id = ids["bos_token_id"]
        self.eos_token_id = ids["eos_token_id"]
        self.pad_token_id = ids["pad_token_id"]
        self.unk_token_id = self._special_ids.get("[UNK]")
        self.eos_token = names[self.eos_token_id]
        self.bos_token = names[self.bos_token_id]
        self.pad_token = names[self.pad_token_id]

    @classmethod
    def from_pretrained(cls, path, *_args, truncation_side="left", **_kwargs) -> "K3Tokenizer":
        try:
            return cls(str(path), truncation_side)
        except (OSError, lib.K3Error) as err:
            from k3_vllm import compat

            compat.refuse(err)

    # ---- vocabulary

    @property
    def vocab_size(self) -> int:
        return self._base + N_SPECIAL

    @property
    def max_token_id(self) -> int:
        return self.vocab_size - 1

    def __len__(self) -> int:
        return self.vocab_size

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def max_chars_per_token(self) -> int:
        return max(len(token) for token in self._bytes)

    @cached_property
    def _tokens(self) -> list[str]:
        alphabet = _byte_alphabet()
        plain = ["".join(alphabet[byte] for byte in token) for token in self._bytes[: self._base]]
        return plain + [token.decode() for token in self._bytes[self._base :]]

    @cached_property
    def _vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self._tokens)}

    @cached_property
    def added_tokens_decoder(self) -> dict:
        from tokenizers import AddedToken

        return {
            i: AddedToken(name, special=True, normalized=False) for name, i in self._special_ids.items()
        }

    def get_vocab(self) -> dict[str, int]:
        return self._vocab

    def get_added_vocab(self) -> dict[str, int]:
        return self._special_ids

    @property
    def all_special_ids(self) -> list[int]:
        return sorted(self._hidden_ids)

    @property
    def all_special_tokens(self) -> list[str]:
        return [self._tokens[i] for i in self.all_special_ids]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        return 0

    # ---- text -> ids

    def encode(self, text, truncation=None, max_length=None, add_special_tokens=True, **_kwargs) -> list[int]:
        """Names of special tokens in `text` become their ids; the image placeholder, a media token."""
        ids = self._text.encode(text.replace(PLACEHOLDER, MEDIA_PAD), specials=True)
        if truncation and max_length is not None and len(ids) > max_length:
            ids = ids[-max_length:] if self.truncation_side == "left" else ids[:max_length]
        return ids

    def __call__(self, text, text_pair=None, add_special_tokens=True, truncation=False, max_length=None, **_kwargs):
        if isinstance(text, str):
            ids = self.encode(text, truncation, max_length)
            return BatchEncoding({"input_ids": ids, "attention_mask": [1] * len(ids)})
        rows = [self.encode(one, truncation, max_length) for one in text]
        return BatchEncoding({"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]})

    def apply_chat_template(self, messages, tools=None, **kwargs) -> list[int]:
        """The prompt of a chat request; every picture part is one media token."""
        request = {"messages": messages, "tools": tools, "chat_template_kwargs": {}}
        for key, value in kwargs.items():
            if key == "response_format":
                request[key] = _with_schema(value)
            elif key in TEMPLATE_KEYS:
                request["chat_template_kwargs"][key] = value
            elif key in REQUEST_KEYS:
                request[key] = value
            elif key not in IGNORED_KEYS and value is not None:
                raise ValueError(f"chat_template_kwargs: {key!r} is not known to Kimi-K3")
        return self._text.chat(request)

    # ---- ids -> text

    def convert_tokens_to_ids(self, tokens):
        if isinstance(tokens, str):
            return self._vocab.get(tokens, self.unk_token_id)
        return [self._vocab.get(token, self.unk_token_id) for token in tokens]

    def convert_ids_to_tokens(self, ids, skip_special_tokens: bool = False):
        if isinstance(ids, int):
            return self._tokens[ids]
        return [self._tokens[i] for i in ids if not (skip_special_tokens and i in self._hidden_ids)]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return b"".join(self._bytes[self._vocab[token]] for token in tokens).decode("utf-8", errors="replace")

    def decode(self, ids: Sequence[int] | int, skip_special_tokens: bool = False, **_kwargs) -> str:
        ids = [ids] if isinstance(ids, int) else ids
        hidden = self._hidden_ids if skip_special_tokens else ()
        return b"".join(self._bytes[i] for i in ids if i not in hidden).decode("utf-8", errors="replace")

    def batch_decode(self, rows, skip_special_tokens: bool = False, **_kwargs) -> list[str]:
        return [self.decode(row, skip_special_tokens) for row in rows]


def _with_schema(response_format: dict | None) -> dict | None:
    """vLLM hands over its own field name for json_schema.schema."""
    inner = (response_format or {}).get("json_schema")
    if not isinstance(inner, dict) or "schema" in inner or "json_schema" not in inner:
        return response_format
    renamed = {"schema" if key == "json_schema" else key: value for key, value in inner.items()}
    return {**response_format, "json_schema": renamed}


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]
