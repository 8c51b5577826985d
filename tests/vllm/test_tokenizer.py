"""The tokenizer as vLLM sees it, on the genuine vocabulary."""

import json
import shutil

import pytest
from conftest import REPO

pytest.importorskip("transformers", reason="NOT RUN: vLLM is not installed")

from k3_vllm.tokenizer import PLACEHOLDER, K3Tokenizer  # noqa: E402

DATA = REPO / "tests" / "data" / "tokenizer"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("k3")
    for name in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copy(DATA / name, path)
    ids = {"bos_token_id": 163584, "eos_token_id": 163586, "pad_token_id": 163839}
    (path / "config.json").write_text(json.dumps(ids))
    return K3Tokenizer.from_pretrained(path)


def test_special_names_become_ids_and_come_back(tokenizer):
    text = "a <|open|> b [BOS] c"
    assert tokenizer.encode(text) == [64, 220, 163587, 291, 220, 163584, 275]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_published_texts_round_trip(tokenizer):
    cases = [json.loads(line) for line in (DATA / "golden.jsonl").read_text().split("\n") if line]
    cases = [case for case in cases if case["kind"] == "encode" and case["allow_special"]]
    cases = [case for case in cases if PLACEHOLDER not in case["text"]]  # that one is ours, see below
    assert len(cases) > 10
    for case in cases:
        assert tokenizer.encode(case["text"]) == case["ids"], case["id"]
        assert tokenizer.decode(case["ids"]) == case["text"], case["id"]


def test_image_placeholder_is_one_media_token(tokenizer):
    assert tokenizer.encode("x<|kimi_image_placeholder|>y") == [87, 163605, 88]


def test_vocabulary_is_byte_level_and_complete(tokenizer):
    vocab = tokenizer.get_vocab()
    assert len(vocab) == len(tokenizer) == 163840
    assert vocab["Ġ"] == 220 and vocab["<|sep|>"] == 163589 and vocab["[PAD]"] == 163839
    assert tokenizer.convert_ids_to_tokens([220, 163586]) == ["Ġ", "<|end_of_msg|>"]
    assert tokenizer.convert_tokens_to_ids(["Ġ", "<|end_of_msg|>"]) == [220, 163586]


def test_skipping_drops_the_flagged_specials_only(tokenizer):
    ids = [163587, 64, 163589, 163586]
    assert tokenizer.decode(ids) == "<|open|>a<|sep|><|end_of_msg|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<|open|>a<|sep|>"


def test_broken_characters_become_replacement_signs(tokenizer):
    emoji = tokenizer.encode("🙂")
    assert tokenizer.decode(emoji) == "🙂"
    if len(emoji) > 1:
        assert "\ufffd" in tokenizer.decode(emoji[:1])


def test_chat_is_rendered_by_the_library(tokenizer):
    ids = tokenizer.apply_chat_template([{"role": "assistant", "content": "你好"}], thinking_effort="high")
    assert len(ids) == 102  # published: 99 and the opener of the answer
    plain = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], thinking=False)
    assert "effort" not in tokenizer.decode(plain)


def test_response_format_of_vllm_reaches_the_prompt(tokenizer):
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}}
    asked = [{"role": "user", "content": "hi"}]
    official = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    internal = {"type": "json_schema", "json_schema": {"name": "x", "json_schema": schema}}
    ids = tokenizer.apply_chat_template(asked, response_format=official)
    assert '{"properties":{"answer":{"type":"integer"}},"type":"object"}' in tokenizer.decode(ids)
    assert tokenizer.apply_chat_template(asked, response_format=internal) == ids


def test_unknown_chat_arguments_are_refused(tokenizer):
    with pytest.raises(ValueError, match="'colour' is not known"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], colour="red")
    with pytest.raises(ValueError, match="role"):
        tokenizer.apply_chat_template([{"role": "robot", "content": "hi"}])
