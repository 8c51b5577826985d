"""From the engine's logits to tokens: vLLM's sampler with one row per position to decide.

A request with d drafts has 1 + d rows. Drafts are point masses, so sampling every row from its own
target distribution and accepting while the sample equals the draft gives exactly the distribution of
plain decoding. More than that: the noise of a row depends only on the request's seed and the
position, so a sampled text is the same with and without speculation, alone or in a batch, and after
a preemption.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

GREEDY_BELOW = 1e-5  # vLLM's own bound on the temperature


@dataclass
class Row:
    """One row of logits: it decides the token after `tokens` and then `drafts`."""

    params: object  # vllm.SamplingParams
    seed: int
    tokens: list[int]  # prompt and committed output; shared, not changed
    n_prompt: int
    drafts: list[int]  # of this step, before the position

    @property
    def position(self) -> int:
        return len(self.tokens) + len(self.drafts)

    @property
    def n_output(self) -> int:
        return self.position - self.n_prompt

    @property
    def output(self) -> list[int]:
        return self.tokens[self.n_prompt :] + self.drafts


class _RowEdit:
    """A logits processor that lives for one step; vLLM's own keep state per batch slot."""

    def __init__(self, edit):
        self.apply = edit


class K3Sampler:
    def __init__(self, vocab_size: int, max_rows: int, logprobs_mode: str):
        self.vocab_size = vocab_size
        self.sampler = Sampler(logprobs_mode)
        self.generators = [torch.Generator() for _ in range(max_rows)]

    def __call__(self, logits: np.ndarray, rows: list[Row]):
        """-> (token ids [rows], LogprobsTensors or None). Changes the logits in place."""
        out = self.sampler(torch.from_numpy(logits), self._metadata(rows))
        return out.sampled_token_ids[:, 0].tolist(), out.logprobs_tensors

    def _metadata(self, rows: list[Row]) -> SamplingMetadata:
        params = [row.params for row in rows]
        greedy = [p.temperature < GREEDY_BELOW for p in params]
        vocab = self.vocab_size
        top_k = [p.top_k if p.top_k > 0 else vocab for p in params]
        no_penalties = not any(_has_penalties(p) for p in params)
        bad_words = {i: p.bad_words_token_ids for i, p in enumerate(params) if p.bad_words_token_ids}
        counts = [vocab if p.logprobs == -1 else p.logprobs for p in params if p.logprobs is not None]

        def column(values, dtype=torch.float32):
            return torch.tensor(values, dtype=dtype)

        return SamplingMetadata(
            temperature=None if all(greedy) else column([p.temperature for p in params]),
            all_greedy=all(greedy),
            all_random=not any(greedy),
            top_p=None if all(p.top_p == 1 for p in params) else column([p.top_p for p in params]),
            top_k=None if all(k == vocab for k in top_k) else column(top_k, torch.int32),
            generators={
                i: self.generators[i].manual_seed(noise_key(row.seed, row.position))
                for i, row in enumerate(rows)
                if not greedy[i]
            },
            max_num_logprobs=max(counts) if counts else None,
            no_penalties=no_penalties,
            prompt_token_ids=None if no_penalties else _padded([row.tokens[: row.n_prompt] for row in rows], vocab),
            frequency_penalties=column([p.frequency_penalty for p in params]),
            presence_penalties=column([p.presence_penalty for p in params]),
            repetition_penalties=column([p.repetition_penalty for p in params]),
            output_token_ids=[row.output for row in rows] if bad_words or not no_penalties else [],
            allowed_token_ids_mask=self._disallowed(params),
            bad_words_token_ids=bad_words,
            logitsprocs=_edits(rows),
        )

    def _disallowed(self, params) -> torch.Tensor | None:
        if not any(p.allowed_token_ids for p in params):
            return None
        mask = torch.zeros((len(params), self.vocab_size), dtype=torch.bool)
        for i, p in enumerate(params):
            if p.allowed_token_ids:
                mask[i] = True
                mask[i, p.allowed_token_ids] = False
        return mask


def is_plain_greedy(params) -> bool:
    """Whether every token of the request is simply the one with the largest logit, and nothing else is asked for."""
    return (
        params.temperature < GREEDY_BELOW
        and params.logprobs is None
        and params.min_tokens == 0
        and not _has_penalties(params)
        and not params.allowed_token_ids
        and not params.bad_words_token_ids
        and not params.logit_bias
    )


def greedy(logits: np.ndarray) -> list[int]:
    return logits.argmax(axis=1).tolist()


def request_seed(params, engine_seed: int, req_id: str) -> int:
    """The caller's seed, or one derived from the request id: equal on all ranks, new per request."""
    if params.seed is not None:
        return params.seed
    return int.from_bytes(hashlib.blake2b(f"{engine_seed}/{req_id}".encode(), digest_size=8).digest(), "little")


def noise_key(seed: int, position: int) -> int:
    """A 63-bit generator seed from (request seed, absolute position): splitmix64 of both."""
    mask = (1 << 64) - 1
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return (x ^ (x >> 31)) >> 1


def apply_grammar(logits: np.ndarray, bitmask: np.ndarray) -> None:
    """Rules out every token whose bit is 0. bitmask: int32 [rows, ceil(vocab / 32)], lowest bit first."""
    bits = np.unpackbits(bitmask.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
    logits[bits == 0] = -np.inf


def _edits(rows: list[Row]) -> LogitsProcessors:
    """min_tokens, logit_bias and min_p of these rows."""
    stops = {
        i: sorted(row.params.all_stop_token_ids)
        for i, row in enumerate(rows)
        if row.n_output < row.params.min_tokens and row.params.all_stop_token_ids
    }
    biases = {i: row.params.logit_bias for i, row in enumerate(rows) if row.params.logit_bias}
    min_p = [row.params.min_p for row in rows]

    def always(logits: torch.Tensor) -> torch.Tensor:
        for i, bias in biases.items():
            logits[i, list(bias)] += torch.tensor(list(bias.values()))
        for i, ids in stops.items():
            logits[i, ids] = -torch.inf
        return logits

    def when_random(logits: torch.Tensor) -> torch.Tensor:
        probs = logits.softmax(dim=-1)
        floor = probs.amax(dim=-1, keepdim=True) * torch.tensor(min_p).unsqueeze(1)
        return logits.masked_fill_(probs < floor, -torch.inf)

    processors = LogitsProcessors()
    if stops or biases:
        processors.non_argmax_invariant.append(_RowEdit(always))
    if any(min_p):
        processors.argmax_invariant.append(_RowEdit(when_random))
    return processors


def _has_penalties(p) -> bool:
    return p.frequency_penalty != 0 or p.presence_penalty != 0 or p.repetition_penalty != 1


def _padded(rows: list[list[int]], pad: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows], dtype=torch.int64)
