"""A scripted engine: it computes nothing, but notices every wrong piece of bookkeeping.

A sequence's state is the list of its tokens. `forward` checks that the state in the slot, the tokens
found in the latent pages and the committed length all tell the same story, and the next token is a
hash of that story; so one wrong block id, missed snapshot or stale row changes the text or raises.
"""

import types
import zlib

import numpy as np

VOCAB = 3072
EOS = 2818  # never produced by next_token


def next_token(history) -> int:
    return zlib.crc32(repr(list(history)).encode()) % 2800


def generate(prompt, n: int) -> list[int]:
    """What the scripted model answers to a prompt, without any engine."""
    history = list(prompt)
    for _ in range(n):
        history.append(next_token(history))
    return history[len(prompt) :]


class FakeEngine:
    latent_bytes, state_bytes = 960, 600_000
    draft_hits = 5  # drafts agree for hash % (draft_hits + 1) tokens
    instances: list["FakeEngine"] = []  # that run, not those opened to see whether it works

    def __init__(self, options, log=None, path=None):
        self.options = options
        n_spec = options["num_speculative_tokens"]
        self.info = types.SimpleNamespace(
            vocab_size=VOCAB, max_num_seqs=options["max_num_seqs"], latent_bytes_per_token=self.latent_bytes,
            state_bytes=self.state_bytes, draft_tokens=n_spec and 7, tp_size=1, weight_bytes=0,
            isa=b"fake", mode=b"bf16", threads=1,
        )  # fmt: skip
        self.slots: dict[int, list] = {}
        self.snapshots: dict[int, tuple[int, list]] = {}  # block -> (part, text)
        self.images: dict[int, int] = {}
        self.counts = dict(steps=0, rows=0, restores=0, snapshots=0, drafts=0, kept=0, images=0)

    def kv_init(self, config):
        FakeEngine.instances.append(self)
        self.block = config.block_tokens
        self.num_blocks = config.num_blocks
        self.pages: dict[int, list] = {}
        self.n_parts = -(-self.state_bytes // config.page_bytes)
        slot_bytes = config.n_slots
        return types.SimpleNamespace(
            snapshot_blocks=self.n_parts, page_bytes=config.page_bytes, pool_bytes=0, slot_bytes=slot_bytes
        )

    def forward(self, arrays, logits):
        a = {name: array.tolist() for name, array in arrays.items()}
        n_reqs = len(a["ctx_len"])
        assert n_reqs <= self.info.max_num_seqs and len(set(a["slot"])) == n_reqs
        assert len(a["token_ids"]) <= self.options["max_num_batched_tokens"]
        media = {}
        for first, key, row, count in zip(a["media_token"], a["media_key"], a["media_row"], a["media_count"]):
            assert row + count <= self.images[key]
            media.update({first + i: ("image", key, row + i) for i in range(count)})
        self.batch, wanted = [], {row: i for i, row in enumerate(a["logit_row"])}
        assert len(wanted) == len(logits)
        for r in range(n_reqs):
            table = a["mla_table"][a["mla_off"][r] : a["mla_off"][r + 1]]
            begin, end, n0, slot = a["q_start"][r], a["q_start"][r + 1], a["ctx_len"][r], a["slot"][r]
            if a["slot_op"][r] == 1:
                assert n0 == 0
                self.slots[slot] = []
            elif a["slot_op"][r] == 2:
                ids = a["restore_block"][r * self.n_parts : (r + 1) * self.n_parts]
                # Parts may stem from different snapshots of the same text, never of another part.
                parts = [self.snapshots[block] for block in ids]
                assert [part for part, _ in parts] == list(range(self.n_parts))
                assert all(text == parts[0][1] for _, text in parts)
                self.slots[slot] = list(parts[0][1])
                self.counts["restores"] += 1
            history = list(self.slots[slot])
            assert len(history) == n0, (len(history), n0)
            assert self._stored(table, n0) == history, "latent pages hold another text"
            for row in range(begin, end):
                token = media.get(row, a["token_ids"][row])
                self._store(table, len(history), token)
                history.append(token)
                if row in wanted:
                    logits[wanted[row]] = 0
                    logits[wanted[row], next_token(history)] = 8
            self.batch.append((slot, table, history, n0, end - begin, a["n_spec"][r]))
            self.counts["rows"] += end - begin
        for req, pos, ids in self._snaps(a["snap_req"], a["snap_pos"], a["snap_block"]):
            slot, table, history, n0, rows, n_spec = self.batch[req]
            assert n0 < pos <= n0 + rows - n_spec
            self._snapshot(ids, history[:pos])
        self.counts["steps"] += 1

    def commit(self, accepted, snap_req, snap_pos, snap_block, req_status):
        for entry, n in zip(self.batch, accepted.tolist(), strict=True):
            slot, table, history, n0, rows, n_spec = entry
            assert rows - n_spec <= n <= rows
            del history[n0 + n :]
            self.slots[slot] = history
            self.counts["drafts"] += n_spec
            self.counts["kept"] += n - (rows - n_spec)
        for req, pos, ids in self._snaps(snap_req.tolist(), snap_pos.tolist(), snap_block.tolist()):
            assert pos <= len(self.batch[req][2])
            self._snapshot(ids, self.batch[req][2][:pos])

    def draft(self, req, last_token, n_draft):
        out = np.zeros((len(req), n_draft), dtype=np.int32)
        for row, (index, token) in enumerate(zip(req.tolist(), last_token.tolist())):
            slot, table, history, *_ = self.batch[index]
            text, hits = history + [token], next_token(history) % (self.draft_hits + 1)
            for i in range(n_draft):
                text.append(next_token(text) if i < hits else 7)
                out[row, i] = text[-1]
        return out

    def encode_image(self, key, pixels, grid):
        t, h, w = grid
        assert len(pixels) == t * h * w and pixels.dtype == np.float32
        self.images.setdefault(key, h * w // 4)
        self.counts["images"] += 1

    def free_image(self, key):
        self.images.pop(key, None)

    def slot_release(self, slot):
        del self.slots[slot]

    def close(self):
        pass

    def _stored(self, table, n):
        return [self.pages[table[p // self.block]][p % self.block] for p in range(n)]

    def _store(self, table, position, token):
        block = table[position // self.block]
        assert 0 < block < self.num_blocks
        self.snapshots.pop(block, None)
        self.pages.setdefault(block, [None] * self.block)[position % self.block] = token

    def _snapshot(self, ids, history):
        assert all(0 < block < self.num_blocks for block in ids)
        for part, block in enumerate(ids):
            self.pages.pop(block, None)
            self.snapshots[block] = (part, list(history))
        self.counts["snapshots"] += 1

    def _snaps(self, reqs, positions, blocks):
        for i, (req, pos) in enumerate(zip(reqs, positions)):
            yield req, pos, tuple(blocks[i * self.n_parts : (i + 1) * self.n_parts])
