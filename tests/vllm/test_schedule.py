"""Real vLLM scheduling over a scripted engine (fake_engine.py) that notices every wrong block, slot,
snapshot or row. Proves the bookkeeping for all schedules; the mathematics is tested elsewhere."""

import random

import pytest
from fake_engine import EOS, FakeEngine, generate

vllm = pytest.importorskip("vllm", reason="NOT RUN: vLLM is not installed")

from k3_vllm import lib  # noqa: E402

BLOCK = 64


@pytest.fixture
def start(monkeypatch, model, draft):
    """start(options) -> LLM on a new scripted engine; at most `pages` KV pages."""
    monkeypatch.setattr(lib, "Engine", FakeEngine)
    running = []

    def start_one(spec=0, pages=200, chunk=128, seqs=4, **options):
        FakeEngine.instances.clear()
        if spec:
            options["speculative_config"] = {"method": "dspark", "model": draft, "num_speculative_tokens": spec}
        llm = vllm.LLM(
            model=model, max_model_len=1024, block_size=BLOCK, max_num_batched_tokens=chunk, max_num_seqs=seqs,
            kv_cache_memory_bytes=1 << 28, num_gpu_blocks_override=pages,
            disable_log_stats=False, **options,
        )  # fmt: skip
        running.append(llm)
        return llm

    yield start_one
    for llm in running:
        llm.llm_engine.engine_core.shutdown()


def prompt(i: int, length: int) -> list[int]:
    return [(i * 7 + j * 13 + 3) % 2800 for j in range(length)]


def check(llm, lengths, n, repeat=2) -> dict:
    """Every prompt gets its scripted answer, also when it comes again; -> the engine's counters."""
    prompts = [prompt(i, length) for i, length in enumerate(lengths)]
    params = vllm.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
    for _ in range(repeat):
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        for p, output in zip(prompts, outputs):
            assert list(output.outputs[0].token_ids) == generate(p, n)
    return FakeEngine.instances[0].counts


def metric(llm, name: str) -> int:
    return sum(m.value for m in llm.get_metrics() if m.name == name)


LENGTHS = (1, 63, 64, 65, 127, 128, 129, 200, 300)


@pytest.mark.parametrize("chunk, spec", [(32, 0), (BLOCK - 1, 7), (BLOCK, 0), (BLOCK + 1, 7), (2 * BLOCK, 0)])
def test_chunks_around_the_block_size(start, chunk, spec):
    llm = start(chunk=chunk, spec=spec)
    counts = check(llm, LENGTHS, 12)
    assert counts["restores"] > 0 and metric(llm, "vllm:prefix_cache_hits") > 0


@pytest.mark.parametrize("spec", [0, 1, 7])
def test_speculation_changes_no_token_and_counts_agree(start, spec):
    llm = start(spec=spec)
    counts = check(llm, (5, 64, 65, 130), 40, repeat=1)
    assert metric(llm, "vllm:spec_decode_num_accepted_tokens") == counts["kept"]
    assert metric(llm, "vllm:spec_decode_num_draft_tokens") == counts["drafts"]
    assert (counts["kept"] > 0) == (spec > 0)


@pytest.mark.parametrize("spec", [0, 3, 7])
@pytest.mark.parametrize("caching", [True, False])
def test_preemption_and_resume(start, spec, caching):
    llm = start(spec=spec, pages=28 if caching else 18, enable_prefix_caching=caching)
    check(llm, (5, 64, 130, 200, 300), 120, repeat=1)
    assert metric(llm, "vllm:num_preemptions") > 0


def test_hostile_drafts_cost_only_rows(start, monkeypatch):
    monkeypatch.setattr(FakeEngine, "draft_hits", 0)
    llm = start(spec=7)
    counts = check(llm, (5, 64, 200), 30)
    assert counts["kept"] == 0 and counts["drafts"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_random_schedules(start, seed):
    print(f"seed {seed}")
    rnd = random.Random(seed)
    lengths = [rnd.randint(1, 280) for _ in range(12)]
    llm = start(
        spec=rnd.choice([0, 1, 4, 7]), pages=rnd.choice([28, 40, 100]), chunk=rnd.choice([32, 63, 64, 100, 300]),
        seqs=rnd.choice([1, 2, 5]),
    )  # fmt: skip
    check(llm, lengths, rnd.randint(1, 100))


def test_many_short_requests_over_few_slots(start):
    llm = start(seqs=2, spec=3)
    check(llm, [3 + i % 5 for i in range(40)], 5, repeat=1)


def test_aborted_requests_leave_their_slots(start):
    llm = start(seqs=2)
    engine, params = llm.llm_engine, vllm.SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    for i in range(6):
        engine.add_request(f"gone{i}", {"prompt_token_ids": prompt(i, 70)}, params)
    for _ in range(5):
        engine.step()
    engine.abort_request([f"gone{i}" for i in range(6)])
    check(llm, (5, 70, 130), 20)


def test_several_answers_of_one_prompt(start):
    llm = start()
    params = vllm.SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=10, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt(0, 90)}], params, use_tqdm=False)[0].outputs
    assert len(outputs) == 3


@pytest.mark.parametrize("spec", [0, 7])
def test_logprobs_and_prompt_logprobs(start, spec):
    llm = start(spec=spec, chunk=BLOCK)
    p = prompt(1, 150)
    params = vllm.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    output = llm.generate([{"prompt_token_ids": p}], params, use_tqdm=False)[0]
    want = generate(p, 12)
    assert list(output.outputs[0].token_ids) == want
    assert [max(entry, key=lambda i: entry[i].logprob) for entry in output.outputs[0].logprobs] == want
    assert all(entry[token].rank == 1 for entry, token in zip(output.outputs[0].logprobs, want))
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == 150
    for i in range(1, 150):  # the scripted model would have said something else than the prompt
        best = max(output.prompt_logprobs[i], key=lambda t: output.prompt_logprobs[i][t].logprob)
        assert best == generate(p[:i], 1)[0] and p[i] in output.prompt_logprobs[i]


@pytest.mark.parametrize("spec", [0, 7])
def test_structured_output_masks_every_row(start, spec):
    from vllm.sampling_params import StructuredOutputsParams

    llm = start(spec=spec)
    params = vllm.SamplingParams(
        temperature=0, max_tokens=30, structured_outputs=StructuredOutputsParams(choice=["yes", "no", "perhaps"])
    )
    outputs = llm.generate([{"prompt_token_ids": prompt(i, 20 + 30 * i)} for i in range(3)], params, use_tqdm=False)
    for output in outputs:
        assert output.outputs[0].text in ("yes", "no", "perhaps")
        assert EOS in output.outputs[0].token_ids or output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("spec", [0, 7])
def test_penalties_and_bans_see_the_drafts_before_them(start, spec):
    """The scripted answer repeats nothing; banning its third token changes it from there, not before."""
    llm = start(spec=spec)
    p = prompt(2, 40)
    want = generate(p, 10)
    params = vllm.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, allowed_token_ids=[*want[:2], 5])
    output = llm.generate([{"prompt_token_ids": p}], params, use_tqdm=False)[0]
    assert list(output.outputs[0].token_ids) == [*want[:2], 5]


def test_sampled_text_is_the_same_with_and_without_speculation(start, monkeypatch):
    params = vllm.SamplingParams(temperature=1.5, seed=11, max_tokens=30, ignore_eos=True, top_k=50)
    texts = []
    for spec, seqs in ((0, 1), (7, 4), (2, 2)):
        llm = start(spec=spec, seqs=seqs)
        outputs = llm.generate([{"prompt_token_ids": prompt(i, 50 + i)} for i in range(4)], params, use_tqdm=False)
        texts.append([list(output.outputs[0].token_ids) for output in outputs])
    assert texts[0] == texts[1] == texts[2]


def test_pictures_cut_by_chunks_and_encoded_once(start):
    import numpy as np
    from PIL import Image

    llm = start(chunk=100)
    picture = Image.fromarray((np.arange(400 * 300 * 3) % 251).astype(np.uint8).reshape(300, 400, 3))
    message = [{"role": "user", "content": [{"type": "image_pil", "image_pil": picture}, {"type": "text", "text": "?"}]}]
    params = vllm.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    first = llm.chat([message, message], params, use_tqdm=False)
    again = llm.chat(message, params, use_tqdm=False)[0]
    tokens = {tuple(output.outputs[0].token_ids) for output in (*first, again)}
    assert len(tokens) == 1
    assert FakeEngine.instances[0].counts["images"] == 1
