"""The same evaluation through the C engine: questions go to a running `k3 serve`.

    k3 serve models/mini --mode f32 --port 8123 \\
        --speculative-config '{"method":"dspark","model":"models/mini-dspark","num_speculative_tokens":7,
                               "adaptive":false}'
    python evaluate_server.py DATA_DIR models/mini OUT.json --url http://127.0.0.1:8123 [--fraction 0.1]

Text goes as token ids to /v1/completions, pictures as PNG data URLs to /v1/chat/completions. The draft
length of a task is read from the server's own counters.
"""
import argparse, base64, io, json, os, re, time, urllib.request
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
import torch
import evaluate, export
from data import Data
from engine import Engine
from suite import Suite


class Server:
    def __init__(self, url):
        self.url = url

    def post(self, path, body):
        r = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                   {"Content-Type": "application/json"})
        with urllib.request.urlopen(r, timeout=1800) as f:
            return json.load(f)["choices"][0]

    def counters(self):
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        return [sum(float(x) for x in re.findall(rf"^vllm:spec_decode_num_{n}_total{{.*}} (\S+)", text, re.M))
                for n in ("drafts", "accepted_tokens")]

    def answer(self, q, new):
        """The answer as text with its markers, through the end of the message."""
        if not q.pictures:
            return self.post("/v1/completions", {"prompt": q.ids, "max_tokens": new, "temperature": 0,
                                                 "skip_special_tokens": False})["text"]
        parts = []
        for p in q.turn.user:
            if isinstance(p, str):
                parts.append({"type": "text", "text": p})
                continue
            f = io.BytesIO()
            Image.fromarray(p.rgb).save(f, "PNG")
            url = "data:image/png;base64," + base64.b64encode(f.getvalue()).decode()
            parts.append({"type": "image_url", "image_url": {"url": url}})
        m = self.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": new,
            "reasoning_effort": q.effort or "none"})["message"]
        return "<|open|>response<|sep|>" + (m["content"] or "") + "<|close|>response<|sep|>"


def response(text):
    return text.split("<|open|>response<|sep|>", 1)[-1].split("<|close|>response<|sep|>")[0]


def after_think(text):
    return text.split("<|close|>think<|sep|>", 1)[-1].replace("<|end_of_msg|>", "")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("data")
    a.add_argument("target")
    a.add_argument("out")
    a.add_argument("--url", default="http://127.0.0.1:8123")
    a.add_argument("--fraction", type=float, default=1.0)
    a.add_argument("--least", type=int, default=1, help="questions per task at least")
    a.add_argument("--most", type=int, default=10000, help="questions per task at most")
    a.add_argument("--only", default="")
    a.add_argument("--like", help="a results file: its tasks, as many questions of each")
    args = a.parse_args()
    start, server, data = time.time(), Server(args.url), Data(args.data, 0)
    like = json.load(open(args.like))["tasks"] if args.like else None
    out = json.load(open(args.out)) if os.path.exists(args.out) else {"tasks": {}, "total": [0, 0]}
    with ThreadPoolExecutor(24) as pool:
        for name, (qs, judge, goal) in Suite(data).all(1.0).items():
            if name in out["tasks"] or not any(o in name for o in args.only.split(";")) or \
                    like is not None and name not in like:
                continue
            n = min(len(qs), args.most, max(args.least, int(len(qs) * args.fraction)))
            if like is not None:
                n = like[name]["n"]
            step = len(qs) // n
            qs = qs[::step][:n]
            new = 96 if judge is None else max(len(q.answer) for q in qs) + 8
            before = server.counters()
            got = list(pool.map(lambda q: server.answer(q, new), qs))
            drafts, accepted = (y - x for x, y in zip(before, server.counters()))
            r = {"n": n, "goal": goal}
            if judge:
                pick = after_think if judge == "all" else response
                want = [data.tok.decode(q.answer) for q in qs]
                ok = [pick(g) == pick(t) for g, t in zip(got, want)]
                r["right"] = round(100 * sum(ok) / n, 2)
                if qs[0].tag:
                    per = {}
                    for q, o in zip(qs, ok):
                        per.setdefault(q.tag, []).append(o)
                    r["by class"] = {t: round(100 * sum(v) / len(v), 1) for t, v in per.items()}
                r["failures"] = [[data.tok.decode(qs[i].ids[-60:]), got[i], want[i]]
                                 for i, o in enumerate(ok) if not o][:3]
            else:
                r["samples"] = [[data.tok.decode(q.ids[-60:]), g] for q, g in list(zip(qs, got))[:4]]
            if drafts:
                r["draft"] = {"cycles": int(drafts), "length": round(1 + accepted / drafts, 3)}
                out["total"] = [out["total"][0] + drafts, out["total"][1] + accepted]
                out["draft"] = {"length over all cycles": round(1 + out["total"][1] / out["total"][0], 3)}
            out["tasks"][name] = r
            print(f"{name:38s} n {n:5d} right {r.get('right', '-')} goal {goal} draft "
                  f"{r.get('draft', {}).get('length', '-')}  [{time.time() - start:.0f} s]", flush=True)
            with open(args.out, "w") as f:
                json.dump(out, f, indent=1)
    if "text" not in out:
        with torch.no_grad():
            out["text"] = evaluate.plain_loss(Engine(export.load(args.target)), data)
        print("held-out text", out["text"])
        with open(args.out, "w") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()
