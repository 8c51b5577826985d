"""Makes the data folder: tokenizer, tokenised corpus, Fashion-MNIST files.

    python prepare.py TEXT.txt FASHION_DIR OUT_DIR [TOKENIZER]

With TOKENIZER (a tiktoken.model) the vocabulary is that one; a new one would not fit an exported model.
"""
import collections, os, random, shutil, sys
import numpy as np
import tasks, tok, tools_task
from chat import DECLARE, EFFORT
import json


# shares of the tasks here; not those of training, so that the vocabulary stays when training changes
SHARES = [(tasks.add, 20), (tasks.sub, 26), (tasks.count, 13), (tasks.sort, 12), (tasks.reverse, 7),
          (tasks.copy, 5), (tasks.fact, 8), (tasks.short_recall, 5)]


def task_pieces():
    """Pieces of the taught tasks, so that the words of tags and questions become single ranks."""
    r, out = random.Random("tokenizer"), collections.Counter()

    def see(text, n=1):
        for m in tok.PATTERN.finditer(text):
            out[m.group()] += n
    for tag in ["message", " role", '="', "user", "assistant", "system", "tool", " tool", " type",
                "think", "response", "tools", "call", "argument", "json", " index", " key", " name",
                "string", "number", "boolean", "thinking-effort", "tool-declare", '"', "1", "2"]:
        see(tag, 20000)
    for level in ("low", "high", "max"):
        see(EFFORT.format(level), 2000)
    for _ in range(30000):
        t = tasks.chat_turn(r, SHARES)
        see(t.user)
        see(t.think)
        see(t.response)
    for _ in range(6000):
        declared = tools_task.declare(r, r.choice(list(tools_task.TOOLS)))
        see(DECLARE.format(json.dumps(declared, sort_keys=True, separators=(",", ":"))))
        t = tools_task.tool_turn(r, declared)
        for x in (t.user, t.think, t.response, t.after) + t.results:
            see(x)
        for name, args in t.calls:
            see(name)
            for a in args:
                for x in a:
                    see(x)
    import pictures
    for _ in range(1500):
        for fn in (pictures.scene_turn, lambda r: pictures.fashion_turn(r, np.zeros((28, 28), np.uint8),
                                                                      r.randrange(10)),
                   lambda r: pictures.pair_turn(r, lambda r: (np.zeros((28, 28), np.uint8),
                                                              r.randrange(10)))):
            t = fn(r)
            for x in [p for p in t.user if isinstance(p, str)] + [t.think, t.response]:
                see(x, 3)
    see("image 56x56", 2000)
    for _ in range(4000):
        say, ask, answer, _ = tasks.key_sentence(r, set())
        for x in (say, ask, answer, answer):
            see(x)
    return out


def main(text, fashion, out, tokenizer=None):
    os.makedirs(out, exist_ok=True)
    blocks = [b.split("\n") for b in open(text).read().strip().split("\n\n")]
    if tokenizer:
        shutil.copy(tokenizer, f"{out}/tiktoken.model")
    else:
        counts = collections.Counter()
        for i, block in enumerate(blocks):
            if i % 40 != 39:
                for para in block:
                    counts.update(m.group() for m in tok.PATTERN.finditer(para))
        counts.update(task_pieces())
        tok.save(tok.train(counts), f"{out}/tiktoken.model")
    tok.dump_config(f"{out}/tokenizer_config.json")
    t = tok.Tokenizer(f"{out}/tiktoken.model")
    ids, starts, held = [], [], []
    for i, block in enumerate(blocks):
        for para in block:
            starts.append(len(ids))
            held.append(i % 40 == 39)
            ids.extend(t.encode(para + "\n"))
    np.savez(f"{out}/corpus.npz", ids=np.array(ids, np.uint16), starts=np.array(starts, np.int64),
             held=np.array(held))
    for f in os.listdir(fashion):
        if f.endswith("ubyte.gz"):
            shutil.copy(os.path.join(fashion, f), out)
    print(f"{len(ids) / 1e6:.2f} M tokens, {sum(held)} of {len(held)} paragraphs held out")


if __name__ == "__main__":
    main(*sys.argv[1:5])
