"""Tensor parallelism in real vLLM: two processes, each reading half of the weights, give one rank's answers."""

import os

import pytest
from conftest import not_run
from test_engine import BLOCK, K3, QUESTIONS, TEXT, close, greedy, k3_run

vllm = pytest.importorskip("vllm", reason="NOT RUN: vLLM is not installed")

LENGTH = 24  # answer tokens


def test_two_ranks_answer_as_one_and_as_k3_run(model, draft):
    """With drafts, chunks, a batch and the prefix cache; sampled texts too, which every rank draws itself."""
    from k3_vllm.tokenizer import K3Tokenizer

    if not os.path.exists(K3):
        not_run(f"{K3} is not built")
    tokenizer = K3Tokenizer(model)
    prompts = [tokenizer.apply_chat_template([{"role": "user", "content": q}]) for q in QUESTIONS[:2]]
    prompts.append(tokenizer.encode(TEXT)[: 2 * BLOCK + 7])
    want = [k3_run(model, ids, LENGTH) for ids in prompts]
    ask = [vllm.SamplingParams(temperature=1.0, seed=i, max_tokens=LENGTH) for i in range(len(prompts))]
    sampled = []
    for ranks in (2, 1):
        llm = vllm.LLM(
            model=model, max_model_len=512, block_size=BLOCK, max_num_batched_tokens=BLOCK + 36, max_num_seqs=4,
            kv_cache_memory_bytes=1 << 28, num_gpu_blocks_override=200, tensor_parallel_size=ranks,
            speculative_config={"method": "dspark", "model": draft, "num_speculative_tokens": 3},
        )  # fmt: skip
        try:
            assert len(llm.collective_rpc("get_supported_tasks")) == ranks  # one answer from each process
            assert greedy(llm, prompts, LENGTH) == want
            assert greedy(llm, prompts[2:], LENGTH) == want[2:]  # from the prefix cache
            outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], ask, use_tqdm=False)
            sampled.append([list(output.outputs[0].token_ids) for output in outputs])
        finally:
            close({0: llm})
    assert sampled[0] == sampled[1]
