"""Accuracy on the Fashion-MNIST test set, the C engine and PyTorch side by side on the same pictures.

    python fashion.py [-n 1000] [-m ../../models/mini] [--data /usr/share/datasets/fashion-mnist]

The questions, the C side and its options are those of bench/fashion_accuracy.py; the other side is
engine.py, in fp32, from the same files. Greedy both. Prints both accuracies and on how many
pictures the two name the same class. 1,000 pictures take both sides
together 4.3 minutes of processor time.
"""
import os, sys
import numpy as np
import torch
import export, pictures
from engine import Engine, Runner
from tok import EOM, Tokenizer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import fashion_accuracy as fashion

ROWS = 40      # pictures of a lockstep run


@torch.no_grad()
def ask_torch(args, photos):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    engine = Engine(export.load(args.model, device=device), device)
    tok = Tokenizer(os.path.join(args.model, "tiktoken.model"))
    text, most = fashion.prompt(args)
    ids = [int(x) for x in text.split(",")]
    first = ids.index(fashion.pad_of(args))
    got, runner = [], None
    for at in range(0, len(photos), ROWS):
        prompts = []
        for gray in photos[at:at + ROWS]:
            pic = pictures.photo(np.frombuffer(gray, np.uint8).reshape(28, 28))
            whole = ids[:first] + [ids[first]] * pic.tokens + ids[first + 1:]
            prompts.append((whole, {first + j: x for j, x in enumerate(engine.features(pic))}))
        runner = runner or Runner(engine, ROWS, len(prompts[0][0]) + most)
        answers, _, _, _ = runner.run(prompts, most, EOM)
        got += [fashion.label_of(tok.decode(a)) for a in answers]
        print(f"\r{len(got)} pictures", end="", file=sys.stderr, flush=True)
    print("\r", end="", file=sys.stderr)
    return got


def main():
    args = fashion.parser_of(__doc__).parse_args()
    photos, labels = fashion.read(args)
    sides = {f"k3 run, {args.mode}": fashion.ask_k3, "PyTorch, fp32": ask_torch}
    got = {}
    for name, ask in sides.items():
        got[name] = ask(args, photos)
        print(f"{name}: ", end="")
        fashion.report(got[name], labels)
    a, b = got.values()
    print(f"the same class on {sum(x == y for x, y in zip(a, b))} of {len(labels)} pictures")


if __name__ == "__main__":
    main()
