"""The runner without vLLM: scheduler outputs made by hand, in both dialects of vLLM, over the scripted engine.

    python3 tests/vllm/test_runner.py          needs numpy only; where vLLM and torch are missing, stand-ins take their names

The dialects differ in how a preempted request comes back: runner V1 hears of it as a known request with new blocks,
runner V2 as a new one whose tokens to compute are prompt and answer so far.
"""

import dataclasses
import importlib.util
import sys
import types
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
if importlib.util.find_spec("k3_vllm") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugin" / "vllm"))


def stand_in(name: str, **attributes) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module


if importlib.util.find_spec("vllm") is None:
    # Only what importing the runner and greedy steps touch.
    @dataclasses.dataclass
    class DraftTokenIds:
        req_ids: list
        draft_token_ids: list

    @dataclasses.dataclass
    class ModelRunnerOutput:
        req_ids: list
        req_id_to_index: dict
        sampled_token_ids: list
        logprobs: object = None
        prompt_logprobs_dict: dict = dataclasses.field(default_factory=dict)

    nothing = type("Nothing", (), {"__init__": lambda self, *args, **kwargs: None})
    stand_in("torch", Tensor=nothing, Generator=nothing, float32=None, uint8=None)
    for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
        stand_in(name, __path__=[])
    stand_in("vllm.v1.outputs", EMPTY_MODEL_RUNNER_OUTPUT=object(), DraftTokenIds=DraftTokenIds, LogprobsLists=nothing,
             LogprobsTensors=nothing, ModelRunnerOutput=ModelRunnerOutput)  # fmt: skip
    stand_in("vllm.v1.sample.logits_processor", LogitsProcessors=nothing)
    stand_in("vllm.v1.sample.metadata", SamplingMetadata=nothing)
    stand_in("vllm.v1.sample.sampler", Sampler=nothing)

from fake_engine import FakeEngine, generate  # noqa: E402

from k3_vllm import lib, runner  # noqa: E402

BLOCK, PARTS, SPEC = 64, 4, 3
PAGE = FakeEngine.state_bytes // PARTS
PARAMS = types.SimpleNamespace(
    temperature=0, seed=1, logprobs=None, prompt_logprobs=None, min_tokens=0, frequency_penalty=0, presence_penalty=0,
    repetition_penalty=1, allowed_token_ids=None, bad_words_token_ids=None, logit_bias=None,
)  # fmt: skip


class Host:
    """As much of a scheduler as a test needs: it hands out blocks and says what to compute."""

    def __init__(self, dialect: str, spec: int = SPEC):
        self.dialect, self.spec, self.free = dialect, spec, list(range(399, 0, -1))
        engine = FakeEngine({"num_speculative_tokens": spec, "max_num_seqs": 2, "max_num_batched_tokens": 128})
        engine.kv_init(lib.KvConfig(num_blocks=400, block_tokens=BLOCK, n_slots=2, page_bytes=PAGE))
        config = types.SimpleNamespace(
            speculative_config=types.SimpleNamespace(num_speculative_tokens=spec) if spec else None,
            model_config=types.SimpleNamespace(seed=0, logprobs_mode="raw_logprobs"),
        )
        self.engine = engine
        self.runner = runner.K3Runner(engine, config, BLOCK, 0, list(range(1, 1 + PARTS)))
        self.tokens, self.tables, self.computed, self.drafts, self.prompts = {}, {}, {}, {}, {}
        self.gone, self.ended = set(), set()

    def blocks(self) -> list:
        """Room for 256 tokens in every group."""
        return [[self.free.pop() for _ in range(4)] for _ in range(1 + PARTS)]

    def preempt(self, req_id: str) -> None:
        """Of its blocks, those of the first boundary stay in the prefix cache; the next request gets the others."""
        old = self.tables[req_id]
        self.tables[req_id] = [known[:1] + new[1:] for known, new in zip(old, self.blocks())]
        self.free += [block for table in reversed(old) for block in reversed(table[1:])]
        self.computed[req_id], self.drafts[req_id] = BLOCK, []
        self.gone.add(req_id)

    def step(self, rows: dict, placeholders: int = 0) -> dict:
        """rows: known tokens to compute, by request; drafts come on top. -> tokens that were sampled."""
        cached = types.SimpleNamespace(
            req_ids=[], resumed_req_ids=set(), all_token_ids={}, new_block_ids=[], num_computed_tokens=[]
        )
        so = types.SimpleNamespace(
            scheduled_new_reqs=[], scheduled_cached_reqs=cached, num_scheduled_tokens={}, scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={}, finished_req_ids=self.ended, free_encoder_mm_hashes=[],
            preempted_req_ids=self.gone - set(rows), encoder_input_updates={}, kv_cache_block_copies=None,
            num_spec_tokens_to_schedule=self.spec, skip_drafts=False, num_invalid_spec_tokens=None,
        )  # fmt: skip
        for req_id, n in rows.items():
            is_new, is_back = req_id not in self.tables, req_id in self.gone
            if is_new:
                self.tables[req_id], self.computed[req_id] = self.blocks(), 0
            if is_new or (is_back and self.dialect == "v2"):
                so.scheduled_new_reqs.append(types.SimpleNamespace(
                    req_id=req_id, prompt_token_ids=self.prompts[req_id], sampling_params=PARAMS, mm_features=[],
                    prefill_token_ids=list(self.tokens[req_id]) if self.dialect == "v2" else None,
                    block_ids=self.tables[req_id], num_computed_tokens=self.computed[req_id],
                ))  # fmt: skip
            else:
                cached.req_ids.append(req_id)
                cached.num_computed_tokens.append(self.computed[req_id])
                cached.new_block_ids.append(self.tables[req_id] if is_back else None)
                if is_back:
                    cached.resumed_req_ids.add(req_id)
                    cached.all_token_ids[req_id] = list(self.tokens[req_id])
            drafts = [-1] * placeholders if placeholders and is_back else self.drafts.get(req_id, [])
            self.gone.discard(req_id)
            if drafts and self.computed[req_id] + n == len(self.tokens[req_id]):
                so.scheduled_spec_decode_tokens[req_id] = drafts
            else:
                drafts = []
            so.num_scheduled_tokens[req_id] = n + len(drafts)
        so.total_num_scheduled_tokens = sum(so.num_scheduled_tokens.values())
        assert self.runner.execute_model(so) is None
        self.ended, self.invalid = set(), so.num_invalid_spec_tokens
        out = self.runner.sample_tokens(None)
        drafts = self.runner.take_draft_token_ids()
        self.drafts = dict(zip(drafts.req_ids, drafts.draft_token_ids)) if drafts else {}
        sampled = dict(zip(out.req_ids, out.sampled_token_ids))
        for req_id, new in sampled.items():
            self.computed[req_id] += rows[req_id] + max(len(new) - 1, 0)
            self.tokens[req_id] = self.tokens[req_id] + new
        return sampled

    def add(self, req_id: str, prompt: list) -> None:
        self.prompts[req_id] = self.tokens[req_id] = prompt

    def answer(self, req_id: str) -> list:
        return self.tokens[req_id][len(self.prompts[req_id]) :]


def hosts() -> list[Host]:
    return [Host(dialect, spec) for dialect in ("v1", "v2") for spec in (0, SPEC)]


class Runner(unittest.TestCase):
    def check(self, host: Host) -> None:
        for req_id in host.tokens:
            got = host.answer(req_id)
            where = f"request {req_id}, dialect {host.dialect}, {host.spec} drafts"
            self.assertEqual(got, generate(host.prompts[req_id], len(got)), where)

    def test_chunks_then_decoding_beside_another_prompt(self):
        for host in hosts():
            host.add("a", [7 * i % 2800 for i in range(70)])
            host.add("b", [11 * i % 2800 for i in range(100)])
            self.assertEqual(host.step({"a": 63}), {"a": []})
            self.assertEqual(len(host.step({"a": 7})["a"]), 1)
            host.step({"a": 1, "b": 50})
            host.step({"a": 1, "b": 50})
            for _ in range(8):
                host.step({"b": 1, "a": 1})
            self.check(host)
            self.assertGreaterEqual(len(host.answer("a")), 11)
            self.assertEqual(host.engine.counts["kept"] > 0, host.spec > 0)

    def test_a_preempted_request_comes_back_from_its_snapshot(self):
        for host in hosts():
            host.add("a", [5 * i % 2800 for i in range(66)])
            host.step({"a": 66})
            for _ in range(4):
                host.step({"a": 1})
            host.preempt("a")
            host.add("b", [3, 4, 5])
            host.add("c", [6] * 70)
            host.step({"b": 3, "c": 70})  # takes both slots and the blocks of a
            host.ended = {"c"}
            # vLLM may pad the resumed request with placeholders: rows that exist in its books only.
            host.step({"a": len(host.tokens["a"]) - BLOCK, "b": 1}, placeholders=2 if host.spec else 0)
            self.assertEqual(host.invalid, {"a": 2} if host.spec else None)
            self.assertEqual(host.engine.counts["restores"], 1)
            for _ in range(4):
                host.step({"a": 1, "b": 1})
            self.check(host)

    def test_ended_requests_give_their_slot_to_the_next(self):
        for host in hosts():
            for i in range(6):
                host.add(str(i), [i, 2, 3])
                host.step({str(i): 3})
                host.step({str(i): 1})
                host.ended = {str(i)}
            self.check(host)
            self.assertEqual(len(host.engine.slots), 1)

    def test_one_wrong_block_id_is_noticed(self):
        """Shows that the scripted engine does see the bookkeeping."""
        host = Host("v1")
        host.add("a", [9 * i % 2800 for i in range(70)])
        host.step({"a": 64})
        host.runner.requests["a"].tables[0][0] += 1
        with self.assertRaises((AssertionError, KeyError)):
            host.step({"a": 6})

    def test_a_value_that_is_not_finite_names_the_request(self):
        host = Host("v1")
        host.add("a", [1, 2, 3])
        forward = host.engine.forward

        def spoiled(arrays, logits):
            forward(arrays, logits)
            arrays["req_status"][0] = lib.E_NONFINITE

        host.engine.forward = spoiled
        with self.assertRaisesRegex(lib.K3Error, "not finite in request a"):
            host.step({"a": 3})

    def test_logits_are_written_where_they_are_read(self):
        """The engine writes into the runner's buffer, and the sampler reads there: no copies."""
        host, written, read = Host("v1"), [], []
        host.add("a", [1, 2, 3])
        forward, greedy = host.engine.forward, runner.greedy
        host.engine.forward = lambda arrays, logits: written.append(logits) or forward(arrays, logits)
        with mock.patch.object(runner, "greedy", lambda logits: read.append(logits) or greedy(logits)):
            host.step({"a": 3})
        self.assertEqual([rows.ctypes.data for rows in written + read], [host.runner.logits.ctypes.data] * 2)


if __name__ == "__main__":
    unittest.main()
