"""Trains the target.

    python train.py DATA_DIR WORK_DIR --seconds 530 [--resume]

Runs for a fixed time: the learning rate and the end follow the clock, so that a run always ends with
its full decay. WORK_DIR receives the exported model (target/), the state for another leg (state.pt)
and the log (train.json). With --compile it takes one step of every row length and writes nothing: that
fills the compilers' caches for the runs to come. On a GPU one CUDA graph per row length holds forward,
backward and optimiser; on a CPU (--device cpu) the same code runs eagerly, for tests.
"""
import argparse, json, os, random, time
import numpy as np
import torch
import config, export, model, optim
from chat import HARD
from loader import Loader

LENGTHS, SHARES = (512, 1024, 2048), (0.74, 0.14, 0.12)
WARMUP, DECAY, FREEZE = 150, 0.6, 0.85
COLUMNS = ["step", "seconds", "T", "loss", "accuracy", *HARD, "photo loss", "shapes loss"]


def length_of(seed):
    def schedule(i):
        return random.Random(f"{seed}/length/{i}").choices(LENGTHS, SHARES)[0]
    return schedule


class Trainer:
    def __init__(self, device, masters=None, seed=0):
        torch.manual_seed(seed)
        self.device = device
        self.spec = model.spec()
        cuda = device == "cuda"
        if masters is None:
            masters = {n: (init.clone() if torch.is_tensor(init) else torch.randn(shape) * init)
                       for n, (shape, _, init) in self.spec.items()}
        low = torch.bfloat16 if cuda else torch.float32
        self.leaves = {}
        for n in self.spec:
            dt = torch.float32 if model.is_f32(n) or n.startswith("aux.") else low
            self.leaves[n] = masters[n].to(device, dt).requires_grad_(self.spec[n][1] != "none")
        compiled = (lambda f: torch.compile(f, dynamic=False)) if cuda else (lambda f: f)
        self.opt = optim.Optimizer(self.spec, {n: m.to(device) for n, m in masters.items()}, self.leaves,
                                   compile=compiled)
        self.opt.write()
        self.model = model.Target(self.leaves, device, compiled)
        self.scale = torch.zeros((), device=device)         # learning-rate factor of this step
        self.bias_rate = torch.full((), 1e-3, device=device)
        self.stats = torch.zeros(len(COLUMNS) - 3, device=device)
        self.load = torch.zeros(config.LAYERS - 1, config.EXPERTS, device=device)
        self.biases = [self.leaves[n] for n in self.spec if n.endswith("e_score_correction_bias")]
        self.graphs, self.batch, self.aux = {}, None, 0.1

    def set_batch(self, arrays):
        if self.batch is None:
            self.batch = {n: torch.from_numpy(np.array(v)).to(self.device) for n, v in arrays.items()}
            self.batch["ids"] = self.batch["ids"].long()
            self.batch["target"] = self.batch["ids"].clone()
            pin = self.device == "cuda"
            self.host = {n: torch.empty_like(torch.from_numpy(np.array(v)), pin_memory=pin)
                         for n, v in arrays.items()}
        for n, v in arrays.items():
            self.host[n].numpy()[...] = v
            self.batch[n].copy_(self.host[n], non_blocking=True)
        self.batch["target"].copy_(self.batch["ids"].roll(-1))
        self.batch["weight"].copy_(self.batch["weight"].roll(-1))

    def compute(self, T):
        loss, stats, load = self.model.loss(self.batch, T, self.aux)
        loss.backward()
        with torch.no_grad():
            self.opt.step(self.scale)
            self.opt.write()
            self.stats.copy_(stats)
            self.load.copy_(load)
            err = torch.sign(load.mean(1, keepdim=True) - load) * self.bias_rate
            for b, e in zip(self.biases, err):
                b.add_(e)
        for p in self.leaves.values():
            p.grad = None

    def step(self, T):
        if self.device != "cuda":
            self.compute(T)
        elif T in self.graphs:
            self.graphs[T].replay()
        else:
            for _ in range(2):
                self.compute(T)
            torch.cuda.synchronize()
            g = torch.cuda.CUDAGraph()
            pool = next(iter(self.graphs.values())).pool() if self.graphs else None
            with torch.cuda.graph(g, pool=pool, stream=torch.cuda.current_stream()):
                self.compute(T)
            self.graphs[T] = g


def run(args, device, start, loader, schedule, state):
    first = state["step"] if state else 0
    t = Trainer(device, state["masters"] if state else None, args.seed)
    if state and not any(n.startswith("aux.") for n in state["given"]):
        t.aux = 0.0                     # started from exported files: the auxiliary heads are gone
    if state and "optim" in state:
        t.opt.load_state(state["optim"])
    log, step, begin, text = state["log"] if state else [], first, None, 0
    peak = args.peak
    while True:
        now = time.time() - start
        if now >= args.seconds or (args.steps and step - first >= args.steps):
            break
        T, arrays = loader.get(step)
        t.set_batch(arrays)
        text += int(arrays["text"][0])
        if device == "cuda":
            torch.cuda.current_stream().synchronize()       # the slot is free once it was copied
        loader.free()
        left = (args.seconds - now) / args.seconds
        t.scale.fill_(peak * min((step - first + 1) / WARMUP, 1.0, max(left / args.decay, 1e-3)))
        t.bias_rate.fill_(0.0 if now > FREEZE * args.seconds else 1e-3)
        t.step(T)
        step += 1
        if step - first == 10:
            begin = (time.time(), step)
        if step % args.every == 0 or step - first <= 5:
            s = t.stats.tolist()
            busy = t.load.max(1).values.mean() / t.load.mean()
            idle = t.load.min(1).values.mean() / t.load.mean()
            log.append([step, round(time.time() - start, 1), T] + [round(x, 4) for x in s])
            print(f"step {step} {time.time() - start:6.1f}s T {T} "
                  + " ".join(f"{n} {x:.3f}" for n, x in zip(COLUMNS[3:], s))
                  + f" load {busy:.2f}/{idle:.2f} lr {float(t.scale):.3f}", flush=True)
    if args.compile:
        loader.close()
        print(f"compiled, {time.time() - start:.1f} s", flush=True)
        return
    if device == "cuda" and begin:
        torch.cuda.synchronize()
        print(f"{(time.time() - begin[0]) / max(1, step - begin[1]) * 1e3:.2f} ms per step, "
              f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
    loader.close()
    masters = {n: m.detach().float().cpu().clone() for n, m in t.opt.masters().items()}
    total = export.target(masters, f"{args.work}/target", args.data)
    torch.save({"step": step, "masters": masters, "optim": [x.cpu() for x in t.opt.state()], "log": log},
               f"{args.work}/state.pt")
    with open(f"{args.work}/train.json", "w") as f:
        json.dump({"seconds": round(time.time() - start, 1), "steps": step, "tokens": step * 16384,
                   "text tokens": text, "bytes": total, "columns": COLUMNS, "log": log}, f)
    print(f"done: {step} steps, {time.time() - start:.1f} s, {total / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("data")
    a.add_argument("work")
    a.add_argument("--seconds", type=float, default=530)
    a.add_argument("--steps", type=int, default=0)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--peak", type=float, default=1.0)
    a.add_argument("--decay", type=float, default=DECAY)
    a.add_argument("--every", type=int, default=50)
    a.add_argument("--workers", type=int, default=14)
    a.add_argument("--compile", action="store_true", help="one step of every row length, nothing is written")
    a.add_argument("--resume", action="store_true", help="continue from WORK_DIR/state.pt")
    a.add_argument("--start", help="continue from an exported model")
    a.add_argument("--first", type=int, default=20000, help="number of the first batch with --start")
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = a.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True        # fp32 products here have bf16 operands (router)
    torch._dynamo.config.recompile_limit = 64
    start = time.time()
    os.makedirs(args.work, exist_ok=True)
    state = None
    if args.resume:
        state = torch.load(f"{args.work}/state.pt", map_location="cpu")
        state["given"] = list(state["masters"])
    elif args.start:
        given = export.load(args.start)
        state = {"step": args.first, "log": [], "given": list(given), "masters": {
            n: given.get(n, torch.zeros(s)) for n, (s, _, _) in model.spec().items()}}
    schedule = length_of(args.seed)
    if args.compile:
        args.steps, schedule = len(LENGTHS), lambda i: LENGTHS[i % len(LENGTHS)]
    loader = Loader(args.data, args.seed, schedule, args.workers, state["step"] if state else 0)
    if args.device == "cuda":
        with torch.cuda.stream(torch.cuda.Stream()):        # capture forbids the default stream
            run(args, "cuda", start, loader, schedule, state)
    else:
        run(args, "cpu", start, loader, schedule, state)
