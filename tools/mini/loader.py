"""Worker processes that make batches into shared memory; batch i is handed out in order."""
import dataclasses
import multiprocessing as mp
import os
from multiprocessing import shared_memory
import numpy as np
from data import Batch, Data


def layout(example):
    at, out = 0, {}
    for f in dataclasses.fields(Batch):
        x = getattr(example, f.name)
        out[f.name] = (at, x.dtype, x.shape)
        at += -(-x.nbytes // 64) * 64
    return out, at


def views(buf, lay):
    return {n: np.ndarray(s, d, buffer=buf, offset=o) for n, (o, d, s) in lay.items()}


def work(folder, seed, lay, names, todo, done):
    os.nice(5)
    data = Data(folder, seed)
    blocks = [shared_memory.SharedMemory(n) for n in names]
    while True:
        job = todo.get()
        if job is None:
            return
        i, length, slot = job
        b = data.batch(i, length)
        for n, v in views(blocks[slot].buf, lay).items():
            v[...] = getattr(b, n)
        done.put((i, slot))


class Loader:
    """schedule(i) -> T of step i. Use: `length, arrays = loader.get(i)`, then `loader.free()`."""
    def __init__(self, folder, seed, schedule, workers, first=0, ahead=48):
        ctx = mp.get_context("fork")
        lay, size = layout(Data(folder, seed).batch(0, 512))
        self.blocks = [shared_memory.SharedMemory(create=True, size=size) for _ in range(ahead)]
        self.views = [views(b.buf, lay) for b in self.blocks]
        self.todo, self.done = ctx.SimpleQueue(), ctx.SimpleQueue()
        self.schedule, self.next, self.ready, self.current = schedule, first, {}, None
        self.procs = [ctx.Process(target=work, daemon=True, args=(
            folder, seed, lay, [b.name for b in self.blocks], self.todo, self.done))
            for _ in range(workers)]
        for p in self.procs:
            p.start()
        for slot in range(ahead):
            self.ask(slot)

    def ask(self, slot):
        self.todo.put((self.next, self.schedule(self.next), slot))
        self.next += 1

    def get(self, i):
        while i not in self.ready:
            j, slot = self.done.get()
            self.ready[j] = slot
        self.current = self.ready.pop(i)
        return self.schedule(i), self.views[self.current]

    def free(self):
        self.ask(self.current)

    def close(self):
        for p in self.procs:
            p.terminate()
        for b in self.blocks:
            b.close()
            b.unlink()
