"""Real vLLM on the real libk3 and the bundled model, in this process: one request, one answer.

The reference is `k3 run`, a program without vLLM: same checkpoint, same ids.
"""

import json
import math
import os
import re
import subprocess
import sys

import pytest
from conftest import REPO, not_run

vllm = pytest.importorskip("vllm", reason="NOT RUN: vLLM is not installed")

K3 = os.environ.get("LIBK3_TEST_PROGRAM", str(REPO / "build" / "release" / "bin" / "k3"))
BLOCK = 64
LENGTH = 40  # answer tokens

QUESTIONS = [
    "What is 17 + 25?",
    "Count from 3 to 9.",
    "What is the capital of France?",
    "Sort these numbers: 9, 4, 7, 1.",
]
TEXT = "Debian packages are described by control files, and each of them names the versions it needs. " * 16


@pytest.fixture(scope="module")
def engines(model, draft):
    """engines(options) -> LLM; one at a time, kept while the options stay the same."""
    kept: dict = {}

    def get(spec=0, pages=400, chunk=256, seqs=8, length=2048, **options):
        key = (spec, pages, chunk, seqs, length, repr(options))
        if key not in kept:
            close(kept)
            if spec:
                options["speculative_config"] = {"method": "dspark", "model": draft, "num_speculative_tokens": spec}
            kept[key] = vllm.LLM(
                model=model, max_model_len=length, block_size=BLOCK, max_num_batched_tokens=chunk, max_num_seqs=seqs,
                kv_cache_memory_bytes=1 << 28, num_gpu_blocks_override=pages, disable_log_stats=False, **options,
            )  # fmt: skip
        return kept[key]

    yield get
    close(kept)


def close(kept: dict) -> None:
    for llm in kept.values():
        llm.llm_engine.engine_core.shutdown()
    kept.clear()


@pytest.fixture(scope="module")
def prompts(model) -> list[list[int]]:
    """Chat prompts, plain text, and lengths around the block size."""
    from k3_vllm.tokenizer import K3Tokenizer

    tokenizer = K3Tokenizer(model)
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": q}]) for q in QUESTIONS]
    text = tokenizer.encode(TEXT)
    assert len(text) > 4 * BLOCK
    return chats + [text[:n] for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7)]


@pytest.fixture(scope="module")
def answers(model, prompts) -> list[list[int]]:
    if not os.path.exists(K3):
        not_run(f"{K3} is not built")
    return [k3_run(model, ids, LENGTH) for ids in prompts]


def k3_run(model: str, ids: list[int], n: int) -> list[int]:
    command = [K3, "run", "--model", model, "--ids", ",".join(map(str, ids)), "-n", str(n), "--output-ids"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(token) for token in out.replace(",", " ").split()]


def greedy(llm, prompts, n=LENGTH, **options) -> list[list[int]]:
    """Answers without the token that ends the turn, as `k3 run` prints them."""
    params = vllm.SamplingParams(temperature=0, max_tokens=n, **options)
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    return [ids[:-1] if out.outputs[0].finish_reason == "stop" else ids for ids, out in zip(tokens, outputs)]


def metric(llm, name: str) -> int:
    return sum(m.value for m in llm.get_metrics() if m.name == name)


@pytest.mark.parametrize("spec", [0, 1, 2, 7])
def test_alone_batched_and_again_as_k3_run(engines, prompts, answers, spec):
    llm = engines(spec=spec)
    assert greedy(llm, prompts) == answers  # all in one batch
    hits = metric(llm, "vllm:prefix_cache_hits")
    assert [greedy(llm, [p])[0] for p in prompts] == answers  # alone, from the prefix cache
    assert metric(llm, "vllm:prefix_cache_hits") > hits
    if spec:
        assert metric(llm, "vllm:spec_decode_num_accepted_tokens") > 0


@pytest.mark.parametrize("chunk, spec", [(BLOCK - 1, 0), (BLOCK, 7), (BLOCK + 1, 7), (2 * BLOCK, 2)])
def test_any_chunk_size(engines, prompts, answers, chunk, spec):
    assert greedy(engines(chunk=chunk, spec=spec, seqs=4), prompts) == answers


@pytest.mark.parametrize("spec", [0, 7])
def test_preempted_and_resumed(engines, prompts, answers, spec):
    """Beyond the end of their turns, so that every request grows until the pages run out."""
    llm = engines(pages=24, seqs=6, length=512, spec=spec)
    got = greedy(llm, prompts, 2 * LENGTH, ignore_eos=True)
    assert [ids[: len(want)] for ids, want in zip(got, answers)] == answers
    assert metric(llm, "vllm:num_preemptions") > 0


def test_many_short_requests_over_few_slots(engines, prompts, answers):
    n = 5
    got = greedy(engines(seqs=2, spec=2), 5 * prompts[:5], n)
    assert got == 5 * [ids[:n] for ids in answers[:5]]


def test_without_prefix_caching(engines, prompts, answers):
    assert greedy(engines(enable_prefix_caching=False, spec=7), prompts) == answers


def test_drafts_of_one_request_do_not_wait_for_prompts_of_others(engines, prompts, answers):
    """Prompts join while others verify drafts; one is aborted on the way."""
    engine = engines(spec=7, chunk=BLOCK).llm_engine
    params = vllm.SamplingParams(temperature=0, max_tokens=LENGTH)
    waiting, done = list(range(len(prompts))), {}
    engine.add_request("gone", {"prompt_token_ids": prompts[-1]}, params)
    for step in range(4000):
        if waiting and step % 3 == 0:
            engine.add_request(str(waiting[0]), {"prompt_token_ids": prompts[waiting[0]]}, params)
            waiting.pop(0)
        if step == 5:
            engine.abort_request(["gone"])
        for output in engine.step():
            if output.finished:
                done[output.request_id.split("-")[0]] = output.outputs[0]
        if not waiting and not engine.has_unfinished_requests():
            break
    for i, want in enumerate(answers):
        assert list(done[str(i)].token_ids)[: len(want)] == want


SPEC_METRICS = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")


def spec_counts(llm) -> tuple[list[int], list[int]]:
    """(drafted, accepted) as vLLM and as libk3 count them."""
    ours = stats(llm)
    return [metric(llm, name) for name in SPEC_METRICS], [ours.spec_rows, ours.spec_accepted]


def test_acceptance_is_counted_as_the_engine_counts_it(engines, prompts):
    for options in ({"enable_prefix_caching": False}, {"chunk": BLOCK, "seqs": 3}, {"pages": 24, "seqs": 6, "length": 512}):
        llm = engines(spec=7, **options)
        before = spec_counts(llm)
        greedy(llm, prompts)
        sampled = [vllm.SamplingParams(temperature=1.0, seed=i, max_tokens=LENGTH) for i in range(len(prompts))]
        llm.generate([{"prompt_token_ids": p} for p in prompts], sampled, use_tqdm=False)
        theirs, ours = ([new - old for new, old in zip(*pair)] for pair in zip(spec_counts(llm), before))
        assert theirs == ours and 0 < ours[1] < ours[0], options


def test_a_draft_that_knows_nothing_changes_nothing(model, prompts, answers, tmp_path):
    """Random weights of the right shapes: hardly a draft is accepted, and every answer stays the same."""
    command = [
        sys.executable, REPO / "tools" / "make_checkpoint.py", "random", tmp_path / "target", "--draft", tmp_path / "draft",
        *shape_of(model),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    kept = {0: vllm.LLM(
        model=model, max_model_len=512, block_size=BLOCK, kv_cache_memory_bytes=1 << 26, disable_log_stats=False,
        max_num_seqs=8,
        speculative_config={"method": "dspark", "model": str(tmp_path / "draft"), "num_speculative_tokens": 3},
    )}  # fmt: skip
    try:
        assert greedy(kept[0], prompts) == answers
        theirs, ours = spec_counts(kept[0])
        assert theirs == ours and ours[0] > 100 and ours[1] < ours[0] / 20
    finally:
        close(kept)


def shape_of(model: str) -> list[str]:
    """What tools/make_checkpoint.py must be told for a draft that fits the model."""
    with open(os.path.join(model, "config.json")) as file:
        text = json.load(file)["text_config"]
    mla = text["linear_attn_config"]["full_attn_layers"]
    return ["--hidden", str(text["hidden_size"]), "--layers", str(text["num_hidden_layers"]),
            "--mla-layers", ",".join(map(str, mla)), "--vocab", str(text["vocab_size"])]  # fmt: skip


def stats(llm):
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    return worker.engine.stats()


def test_logprobs_are_the_same_with_drafts(engines, prompts):
    params = vllm.SamplingParams(temperature=0, max_tokens=24, logprobs=3, prompt_logprobs=1)
    seen = []
    for spec in (0, 7):
        out = engines(spec=spec).generate({"prompt_token_ids": prompts[0]}, params, use_tqdm=False)[0]
        assert len(out.outputs[0].logprobs) == len(out.outputs[0].token_ids)
        assert len(out.prompt_logprobs) == len(prompts[0])
        seen.append((
            [{t: e.logprob for t, e in entry.items()} for entry in out.outputs[0].logprobs],
            [{t: e.logprob for t, e in (entry or {}).items()} for entry in out.prompt_logprobs],
        ))  # fmt: skip
    assert seen[0] == seen[1]  # bitwise


def test_sampled_text_is_the_same_with_and_without_drafts(engines, prompts):
    params = [vllm.SamplingParams(temperature=1.0, top_p=0.95, seed=i, max_tokens=40) for i in range(len(prompts))]
    texts = []
    for options in ({"spec": 0}, {"spec": 7}, {"spec": 2, "chunk": BLOCK, "seqs": 3}):
        outputs = engines(**options).generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        texts.append([list(output.outputs[0].token_ids) for output in outputs])
    assert texts[0] == texts[1] == texts[2]


def test_sampling_with_drafts_has_the_target_distribution(engines, prompts):
    """Second tokens of many answers, of which drafts decide most, against the model's own probabilities (chi-square,
    99.9 %). The prompt is the one whose second token is least certain, so that there is something to get wrong."""
    llm, n = engines(spec=7), 600

    def bins(prompt):
        """(first token, {second token: expected draws, if 5 or more})"""
        ask = vllm.SamplingParams(temperature=1.0, max_tokens=1, logprobs=20, seed=0)
        first = llm.generate({"prompt_token_ids": prompt}, ask, use_tqdm=False)[0].outputs[0].logprobs[0]
        token = max(first, key=lambda t: first[t].logprob)
        second = llm.generate({"prompt_token_ids": [*prompt, token]}, ask, use_tqdm=False)[0].outputs[0].logprobs[0]
        share = math.exp(first[token].logprob)
        return token, {t: math.exp(e.logprob) for t, e in second.items() if share * n * math.exp(e.logprob) >= 5}

    best = max(prompts, key=lambda prompt: len(bins(prompt)[1]))
    first, probs = bins(best)
    before = stats(llm).spec_rows
    params = vllm.SamplingParams(temperature=1.0, max_tokens=3, n=n, seed=1234, ignore_eos=True)
    outputs = llm.generate({"prompt_token_ids": best}, params, use_tqdm=False)[0].outputs
    draws = [o.token_ids[1] for o in outputs if o.token_ids[0] == first]
    counts = [(draws.count(token), p * len(draws)) for token, p in probs.items()]
    counts.append((len(draws) - sum(c for c, _ in counts), len(draws) * (1 - sum(probs.values()))))
    if counts[-1][1] < 5:  # too rare for a bin of its own
        (a, x), (b, y) = counts.pop(), counts.pop()
        counts.append((a + b, x + y))
    chi2 = sum((c - e) ** 2 / e for c, e in counts)
    degrees = len(counts) - 1
    limit = degrees * (1 - 2 / (9 * degrees) + 3.0902 * math.sqrt(2 / (9 * degrees))) ** 3
    print(f"{len(draws)} draws, {degrees} degrees of freedom, chi-square {chi2:.1f} of {limit:.1f}")
    assert stats(llm).spec_rows - before >= n and degrees >= 2
    assert chi2 < limit


@pytest.mark.parametrize("spec", [0, 7])
def test_structured_output(engines, prompts, spec):
    from vllm.sampling_params import StructuredOutputsParams

    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
              "additionalProperties": False}  # fmt: skip
    params = vllm.SamplingParams(temperature=0, max_tokens=80, structured_outputs=StructuredOutputsParams(json=schema))
    outputs = engines(spec=spec).generate([{"prompt_token_ids": p} for p in prompts[:3]], params, use_tqdm=False)
    for output in outputs:
        if output.outputs[0].finish_reason == "stop":
            assert set(json.loads(output.outputs[0].text)) == {"sum"}
        else:  # a small model may add digits or blanks for ever; still inside the grammar
            assert re.fullmatch(r'\{\s*("sum"\s*(:\s*(-?\d*)?\s*)?)?', output.outputs[0].text)


def pictures():
    import numpy as np
    from PIL import Image

    rnd = np.random.default_rng(7)
    return [Image.fromarray(rnd.integers(0, 255, (h, w, 3), dtype=np.uint8)) for w, h in ((56, 56), (300, 210))]


def picture_chat(images) -> list[dict]:
    parts = [{"type": "image_pil", "image_pil": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is shown?"}]}]


@pytest.mark.parametrize("spec", [0, 7])
def test_pictures_as_k3_run(engines, model, tmp_path, spec):
    """Decoding, resizing, prompt and tower: Pillow's and the plugin's way against the program's own."""
    from k3_vllm.tokenizer import PLACEHOLDER

    if not os.path.exists(K3):
        not_run(f"{K3} is not built")
    prompt, files = "There are two pictures, <image> and <image>. The first one shows", []
    for i, picture in enumerate(pictures()):
        files += ["--image", str(tmp_path / f"{i}.png")]
        picture.save(files[-1])
    command = [K3, "run", "--model", model, "--prompt", prompt, *files, "-n", str(LENGTH), "--output-ids"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    want = [int(token) for token in out.replace(",", " ").split()]
    request = {"prompt": prompt.replace("<image>", PLACEHOLDER), "multi_modal_data": {"image": pictures()}}
    params = vllm.SamplingParams(temperature=0, max_tokens=LENGTH)
    output = engines(spec=spec).generate(request, params, use_tqdm=False)[0].outputs[0]
    assert list(output.token_ids)[: len(want)] == want and len(want) >= 1


def test_pictures_chunked_cached_and_with_drafts(engines):
    params = vllm.SamplingParams(temperature=0, max_tokens=24)
    chats = [picture_chat(pictures()[:1]), picture_chat(pictures()), picture_chat(pictures()[1:])]
    seen = []
    for options in ({}, {"chunk": BLOCK + 36, "seqs": 2}, {"spec": 7}):
        llm = engines(**options)
        for _ in range(2):
            seen.append([list(o.outputs[0].token_ids) for o in llm.chat(chats, params, use_tqdm=False)])
            images = stats(llm).images
        assert images == 2  # each picture once, for all requests
    assert all(tokens == seen[0] for tokens in seen)
    assert seen[0][0] != seen[0][2]
