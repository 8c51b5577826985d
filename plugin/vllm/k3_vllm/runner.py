"""K3Runner: scheduler outputs -> flat arrays for libk3, logits -> tokens, drafts and statistics.

One transaction per step: `execute_model` sends the batch through k3_forward, `sample_tokens` samples,
commits what stays and asks for drafts.

State. Every running request owns a slot of the engine (its KDA state); the block ids of the latents
come from vLLM's first KV group, those of the other groups name where a snapshot of the KDA state at a
block boundary is kept. A snapshot at position b goes to entry b / B - 1 of those tables, in the very
step that reaches b: the scheduler holds that block until it has seen a committed length above b, and
it hashes only tokens that are committed. Older entries may belong to somebody else by now and are
never written. Both holds for synchronous scheduling only.
"""

import hashlib
import itertools
from dataclasses import dataclass, field

import numpy as np
import torch
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    DraftTokenIds,
    LogprobsLists,
    LogprobsTensors,
    ModelRunnerOutput,
)

from k3_vllm import lib
from k3_vllm.sampling import K3Sampler, Row, apply_grammar, greedy, is_plain_greedy, request_seed


@dataclass(slots=True)
class Request:
    params: object  # vllm.SamplingParams
    seed: int
    tokens: list[int]  # prompt and output so far
    n_prompt: int
    tables: list[list[int]]  # block ids by KV group
    features: list  # vLLM's MultiModalFeatureSpec, in prompt order
    n_computed: int
    is_greedy: bool  # the sampler's short way will do
    slot: int | None = None
    slot_op: int = lib.SLOT_KEEP
    prompt_logprobs: LogprobsTensors | None = None


@dataclass(slots=True)
class Step:
    """A request's part of the pending transaction."""

    req_id: str
    request: Request
    n0: int  # committed tokens before the step
    n_rows: int
    n_final: int  # rows of known tokens, the first ones; the others are drafts
    drafts: list[int]
    samples: bool  # the last row of the known tokens is in the step, so a token is sampled
    logit_rows: list[int] = field(default_factory=list)  # rows of the logits buffer that are sampled
    prompt_rows: list[int] = field(default_factory=list)  # rows for prompt logprobs


class K3Runner:
    def __init__(self, engine: lib.Engine, vllm_config, block_tokens: int, latent_group: int, state_groups: list[int]):
        info = engine.info
        self.engine = engine
        self.block_tokens = block_tokens
        self.latent_group = latent_group
        self.state_groups = state_groups  # empty without prefix caching: no snapshots
        spec = vllm_config.speculative_config
        self.n_spec = spec.num_speculative_tokens if spec else 0
        self.vocab_size = info.vocab_size
        self.engine_seed = vllm_config.model_config.seed or 0
        max_rows = info.max_num_seqs * (1 + self.n_spec)
        self.sampler = K3Sampler(info.vocab_size, max_rows, vllm_config.model_config.logprobs_mode)
        self.logits = np.empty((max_rows, info.vocab_size), dtype=np.float32)
        self.requests: dict[str, Request] = {}
        self.images: set[int] = set()  # keys that the engine holds
        self.free_slots = list(range(info.max_num_seqs))[::-1]
        self.pending: tuple | None = None  # (scheduler output, steps, logits)
        self.drafts: DraftTokenIds | None = None

    # ---- vLLM's calls

    def execute_model(self, so) -> ModelRunnerOutput | None:
        self._update_requests(so)
        if so.total_num_scheduled_tokens == 0:
            return EMPTY_MODEL_RUNNER_OUTPUT
        for req_id, indices in so.scheduled_encoder_inputs.items():
            for index in indices:
                self._encode(self.requests[req_id].features[index])
        steps = [self._step(req_id, n_rows, so) for req_id, n_rows in so.num_scheduled_tokens.items()]
        arrays, n_logits = self._batch(steps)
        if n_logits > len(self.logits):
            self.logits = np.empty((n_logits, self.vocab_size), dtype=np.float32)
        self.engine.forward(arrays, self.logits[:n_logits])
        _refuse_nonfinite(steps, arrays["req_status"])
        for step in steps:
            step.request.slot_op = lib.SLOT_KEEP
        self.pending = (so, steps, self.logits[:n_logits])
        return None

    def sample_tokens(self, grammar) -> ModelRunnerOutput:
        if self.pending is None:
            return EMPTY_MODEL_RUNNER_OUTPUT
        (so, steps, logits), self.pending = self.pending, None
        prompt_logprobs = self._prompt_logprobs(steps, logits)
        usable = self._apply_grammar(grammar, steps, logits)
        rows = [i for step in steps for i in step.logit_rows]
        sampled, logprobs = [], None
        if rows:
            chosen = logits if len(rows) == len(logits) else logits[rows]
            if all(step.request.is_greedy for step in steps):
                sampled = greedy(chosen)
            else:
                sampled, logprobs = self.sampler(chosen, [row for step in steps for row in self._rows(step)])
        tokens, kept_rows, at = [], [], 0
        for step in steps:
            n_kept = 0
            if step.samples:
                n_kept = 1 + _n_accepted(step.drafts, sampled[at:], usable.get(step.req_id, len(step.drafts)))
            tokens.append(sampled[at : at + n_kept])
            kept_rows.append(range(at, at + n_kept))
            at += len(step.logit_rows)
        self._commit(steps, tokens)
        self._propose(so, steps, tokens)
        return ModelRunnerOutput(
            req_ids=[step.req_id for step in steps],
            req_id_to_index={step.req_id: i for i, step in enumerate(steps)},
            sampled_token_ids=tokens,
            logprobs=_logprob_lists(logprobs, kept_rows),
            prompt_logprobs_dict=prompt_logprobs,
        )

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        drafts, self.drafts = self.drafts, None
        return drafts

    def reset_images(self) -> None:
        while self.images:
            self.engine.free_image(self.images.pop())

    # ---- requests

    def _update_requests(self, so) -> None:
        """Ended and preempted requests first: their slots may be needed by the others."""
        if getattr(so, "kv_cache_block_copies", None):
            raise RuntimeError("vLLM asks for copies of KV blocks, which k3-vllm never has")
        for req_id in so.finished_req_ids:
            self._release(req_id)
            self.requests.pop(req_id, None)
        for req_id in so.preempted_req_ids or ():
            self._release(req_id)
        for key in so.free_encoder_mm_hashes:
            self.engine.free_image(_image_key(key))
            self.images.discard(_image_key(key))
        for new in so.scheduled_new_reqs:  # also a resumed request, in the dialect of runner V2
            self._release(new.req_id)
            tokens = new.prefill_token_ids or new.prompt_token_ids
            self.requests[new.req_id] = Request(
                params=new.sampling_params,
                seed=request_seed(new.sampling_params, self.engine_seed, new.req_id),
                tokens=list(tokens),
                n_prompt=len(new.prompt_token_ids),
                tables=[list(ids) for ids in new.block_ids],
                features=new.mm_features,
                n_computed=new.num_computed_tokens,
                is_greedy=is_plain_greedy(new.sampling_params),
            )
        cached = so.scheduled_cached_reqs
        for i, req_id in enumerate(cached.req_ids):
            request = self.requests[req_id]
            request.n_computed = cached.num_computed_tokens[i]
            blocks = cached.new_block_ids[i]
            if req_id in cached.resumed_req_ids:
                request.tables = [list(ids) for ids in blocks]
                request.tokens = list(cached.all_token_ids.get(req_id, request.tokens))
                self._release(req_id)
            elif blocks is not None:
                for table, ids in zip(request.tables, blocks):
                    table.extend(ids)
        for req_id, updates in getattr(so, "encoder_input_updates", {}).items():
            for index, data in updates.items():
                self.requests[req_id].features[index].data = data
        for req_id in so.num_scheduled_tokens:
            request = self.requests[req_id]
            if request.slot is None:
                request.slot = self.free_slots.pop()
                request.slot_op = lib.SLOT_RESTORE if request.n_computed else lib.SLOT_RESET

    def _release(self, req_id: str) -> None:
        request = self.requests.get(req_id)
        if request is not None and request.slot is not None:
            self.engine.slot_release(request.slot)
            self.free_slots.append(request.slot)
            request.slot = None

    def _encode(self, feature) -> None:
        pixels = feature.data["pixel_values"].data.to(torch.float32).numpy()
        grid = feature.data["grid_thws"].data.flatten().tolist()
        self.engine.encode_image(_image_key(feature.identifier), pixels, tuple(grid))
        self.images.add(_image_key(feature.identifier))

    # ---- the batch

    def _step(self, req_id: str, n_rows: int, so) -> Step:
        request = self.requests[req_id]
        scheduled = so.scheduled_spec_decode_tokens.get(req_id, ())
        drafts = list(itertools.takewhile(lambda token: token >= 0, scheduled))
        # vLLM pads a request with one token to compute to the size of a verification (-1), for the sake of CUDA graphs.
        # Such rows are not computed; told of them like this, vLLM does not count them as drafts either.
        if n_padding := len(scheduled) - len(drafts):
            n_rows -= n_padding
            so.num_invalid_spec_tokens = {**(so.num_invalid_spec_tokens or {}), req_id: n_padding}
        n0, n_final = request.n_computed, n_rows - len(drafts)
        return Step(req_id, request, n0, n_rows, n_final, drafts, samples=n0 + n_final == len(request.tokens))

    def _batch(self, steps: list[Step]) -> tuple[dict, int]:
        tokens: list[int] = []
        q_start, mla_off, table, logit_row, restore = [0], [0], [], [], []
        media: list[tuple] = []
        snaps: list[tuple] = []
        no_restore = [0] * len(self.state_groups)
        for i, step in enumerate(steps):
            request, first, n0, end = step.request, len(tokens), step.n0, step.n0 + step.n_final
            tokens += request.tokens[n0:end]
            tokens += step.drafts
            q_start.append(len(tokens))
            table += request.tables[self.latent_group]
            mla_off.append(len(table))
            # The first rows for prompt logprobs, the last ones for sampling. No row is both: what follows the last
            # token of a prompt is not part of the prompt.
            if request.params.prompt_logprobs is not None:
                n_prompt_rows = max(0, min(end, request.n_prompt - 1) - n0)
                step.prompt_rows = list(range(len(logit_row), len(logit_row) + n_prompt_rows))
                logit_row += range(first, first + n_prompt_rows)
            if step.samples:
                n_sampled = 1 + len(step.drafts)
                step.logit_rows = list(range(len(logit_row), len(logit_row) + n_sampled))
                logit_row += range(len(tokens) - n_sampled, len(tokens))
            if request.features:
                media += [(first + at - n0, key, row, n) for at, key, row, n in self._media(step)]
            restore += self._restore(request, n0) if request.slot_op == lib.SLOT_RESTORE else no_restore
            snaps += self._snapshot(i, step, n0, end)
        columns = list(zip(*media)) or [()] * 4
        arrays = {
            "token_ids": lib.i32(tokens),
            "q_start": lib.i32(q_start),
            "ctx_len": lib.i32([step.n0 for step in steps]),
            "slot": lib.i32([step.request.slot for step in steps]),
            "slot_op": lib.i32([step.request.slot_op for step in steps]),
            "restore_block": lib.i32(restore),
            "n_spec": lib.i32([len(step.drafts) for step in steps]),
            "mla_off": lib.i32(mla_off),
            "mla_table": lib.i32(table),
            "logit_row": lib.i32(logit_row),
            "media_token": lib.i32(columns[0]),
            "media_key": lib.u64(columns[1]),
            "media_row": lib.i32(columns[2]),
            "media_count": lib.i32(columns[3]),
            "req_status": lib.i32([0] * len(steps)),
            **_snap_arrays(snaps),
        }
        return arrays, len(logit_row)

    def _media(self, step: Step):
        """(position, image key, first row, rows) of the picture rows inside the step."""
        for feature in step.request.features:
            place = feature.mm_position
            mask = place.is_embed
            skipped = 0 if mask is None else int(mask.to(torch.uint8).argmax())
            begin = place.offset + skipped
            first = max(begin, step.n0)
            last = min(begin + place.get_num_embeds(), step.n0 + step.n_final)
            if first < last:
                yield first, _image_key(feature.identifier), first - begin, last - first

    def _restore(self, request: Request, n0: int) -> list[int]:
        if n0 % self.block_tokens or not self.state_groups:
            raise RuntimeError(f"vLLM resumes a request at token {n0}, which is no snapshot position")
        return [request.tables[group][n0 // self.block_tokens - 1] for group in self.state_groups]

    def _snapshot(self, index: int, step: Step, after: int, upto: int) -> list[tuple]:
        """The snapshot (index, position, blocks) at the last block boundary in (after, upto], if any."""
        position = upto // self.block_tokens * self.block_tokens
        if position <= after or not self.state_groups:
            return []
        entry = position // self.block_tokens - 1
        tables = [step.request.tables[group] for group in self.state_groups]
        blocks = [table[entry] if entry < len(table) else 0 for table in tables]
        return [(index, position, blocks)] if all(blocks) else []

    def _commit(self, steps: list[Step], tokens: list[list[int]]) -> None:
        accepted, snaps = [], []
        for i, (step, new) in enumerate(zip(steps, tokens)):
            n_extra = max(len(new) - 1, 0)  # accepted drafts
            final = step.n0 + step.n_final
            accepted.append(step.n_final + n_extra)
            snaps += self._snapshot(i, step, final, final + n_extra)
            step.request.tokens += new
        status = lib.i32([0] * len(steps))
        self.engine.commit(lib.i32(accepted), **_snap_arrays(snaps), req_status=status)
        _refuse_nonfinite(steps, status)

    def _propose(self, so, steps: list[Step], tokens: list[list[int]]) -> None:
        width = min(self.n_spec, getattr(so, "num_spec_tokens_to_schedule", self.n_spec), self.engine.info.draft_tokens)
        self.drafts = None
        if width == 0 or getattr(so, "skip_drafts", False):
            return
        chosen = [i for i, new in enumerate(tokens) if new]
        if not chosen:
            return
        last = [steps[i].request.tokens[-1] for i in chosen]
        ids = self.engine.draft(lib.i32(chosen), lib.i32(last), width)
        self.drafts = DraftTokenIds([steps[i].req_id for i in chosen], ids.tolist())

    # ---- sampling

    def _rows(self, step: Step):
        request = step.request
        for i in range(len(step.logit_rows)):
            yield Row(request.params, request.seed, request.tokens, request.n_prompt, step.drafts[:i])

    def _apply_grammar(self, grammar, steps: list[Step], logits: np.ndarray) -> dict[str, int]:
        """Masks the rows of grammar-bound requests; -> drafts of each that may be accepted."""
        if grammar is None:
            return {}
        by_id = {step.req_id: step for step in steps}
        usable = {}
        for i, req_id in enumerate(grammar.structured_output_request_ids):
            step, first = by_id[req_id], i * (1 + self.n_spec)  # every request has that many mask rows
            if step.samples:
                masked = logits[step.logit_rows]
                apply_grammar(masked, grammar.grammar_bitmask[first : first + len(masked)])
                logits[step.logit_rows] = masked
            usable[req_id] = grammar.num_acceptable_drafts[i]
        return usable

    def _prompt_logprobs(self, steps: list[Step], logits: np.ndarray) -> dict[str, LogprobsTensors]:
        """Collects over the chunks; a prompt's are given with its first sampled token."""
        done = {}
        for step in steps:
            request = step.request
            if request.params.prompt_logprobs is None or len(request.tokens) > request.n_prompt:
                continue
            count = request.params.prompt_logprobs
            count = self.vocab_size if count == -1 else count
            if request.prompt_logprobs is None:
                request.prompt_logprobs = LogprobsTensors.empty_cpu(request.n_prompt - 1, count + 1)
            if step.prompt_rows:
                scores = torch.from_numpy(logits[step.prompt_rows])
                if "logprobs" in self.sampler.sampler.logprobs_mode:
                    scores = scores.log_softmax(dim=-1)
                first = step.n0 + 1
                targets = torch.tensor(request.tokens[first : first + len(step.prompt_rows)])
                part = self.sampler.sampler.gather_logprobs(scores, count, targets)
                for whole, chunk in zip(request.prompt_logprobs[:3], part[:3]):
                    whole[step.n0 : step.n0 + len(step.prompt_rows)] = chunk
            if step.samples:
                done[step.req_id], request.prompt_logprobs = request.prompt_logprobs, None
        return done


def _refuse_nonfinite(steps: list[Step], status) -> None:
    """vLLM has no way to end one request with an error; a wrong answer would be worse than no answer."""
    if any(status):
        bad = ", ".join(step.req_id for step, code in zip(steps, status) if code)
        raise lib.K3Error(lib.E_NONFINITE, f"a computed value is not finite in request {bad}")


def _n_accepted(drafts: list[int], sampled: list[int], limit: int) -> int:
    """Drafts that equal what the target samples at their place, in order."""
    n = 0
    while n < min(len(drafts), limit) and sampled[n] == drafts[n]:
        n += 1
    return n


def _logprob_lists(tensors: LogprobsTensors | None, kept: list[range]) -> LogprobsLists | None:
    if tensors is None:
        return None
    rows = [i for part in kept for i in part]
    starts = np.cumsum([0] + [len(part) for part in kept]).tolist()
    ids, values, ranks = (tensor.numpy()[rows] for tensor in tensors[:3])
    return LogprobsLists(ids, values, ranks, starts)


def _snap_arrays(snaps: list[tuple]) -> dict:
    return {
        "snap_req": lib.i32([index for index, _, _ in snaps]),
        "snap_pos": lib.i32([position for _, position, _ in snaps]),
        "snap_block": lib.i32([block for _, _, blocks in snaps for block in blocks]),
    }


def _image_key(identifier: str) -> int:
    """libk3 names an encoded picture by 64 bits; vLLM by the hash of its content."""
    return int.from_bytes(hashlib.blake2b(identifier.encode(), digest_size=8).digest(), "little")
