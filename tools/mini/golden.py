"""Golden vectors for the C engine, from the exported files, in fp32 token by token.

    python golden.py DATA_DIR TARGET_DIR DRAFT_DIR OUT_DIR

golden.json: prompts (ids, text), greedy ids, the smallest top-2 margin, pictures with the place of
their first pad, draft cycles (anchor, guesses, accepted, confidences). pNN.f32: logits after the last
prompt id (float32, little-endian). Pictures are PNG files.
"""
import json, os, random, sys
import torch
from PIL import Image
import draft as draft_module
import export, pictures, tools_task
from chat import Conversation
from data import Data
from engine import Engine, Runner
from evaluate import cycles, guesses
from suite import Question, Suite, ask
from tasks import Turn
from tok import EOM


def questions(data):
    s, r = Suite(data, 4711), random.Random(4711)
    f = data.fmt
    conv = lambda effort="max", tools=None, system=None: Conversation(f, effort, tools, system)
    photo = lambda i: pictures.photo(data.fashion.test_x[i])
    out = []

    def put(name, c, user):
        out.append((name, ask(c, Turn(user, "", ""))))
    put("What is 17 + 25?", conv(), "What is 17 + 25?")
    put("What is 17 + 25? (thinking off)", conv(None), "What is 17 + 25?")
    put("348 + 586 = ? (effort low)", conv("low"), "348 + 586 = ?")
    put("difference", conv(), "What is 503 - 267?")
    put("negative difference (effort high)", conv("high"), "What is 267 - 503?")
    put("capital", conv(), "What is the capital of France?")
    put("Hello (thinking off)", conv(None), "Hello")
    put("sort, mixed", conv(), "Sort: pear, 12, apple, 3, lemon")
    put("reverse, mixed", conv(), "Reverse: cat, 41, dog, 7, tree")
    put("count", conv(), "How many times is red in this list: red, blue, red, green, red?")
    put("system prompt", conv(system="You are terse."), "What is 250 - 75?")
    c = conv(None)
    c.user("What is 5 + 6?")
    c.assistant("", "5 + 6 = 11.")
    put("second turn", c, "What is 11 + 6?")
    out.append(("continue", s.continuation(1)[0]))
    out.append(("plain text", s.plain(1)[0]))
    out.append(("recall 100", s.recall(1, 100)[0]))
    out.append(("recall 700", s.recall(1, 700)[0]))
    tool = tools_task.TOOLS["get_weather"][0]
    put("tool", conv(tools=[tool]), "What is the weather in Paris?")
    put("several calls (thinking off)", conv(None, [tool, tools_task.TOOLS["get_time"][0]]),
        "What is the weather in Paris and Rome?")
    c = conv(tools=[tool])
    c.user("What is the weather in Paris?")
    c.assistant("Call get_weather: city Paris.", "", (("get_weather", (("city", "string", "Paris"),)),))
    c.tool_result("get_weather", 1, "18 C")
    c.generation_prompt()
    out.append(("answer after a tool result", Question(c.ids, [], [])))
    put("picture: clothing", conv(), [photo(0), "What is this?"])
    put("picture: clothing (thinking off)", conv(None), ["What does the picture show?", photo(8)])
    pic, shapes = pictures.scene(r)
    put("picture: scene", conv(), [pic, f"How many {shapes[0][0]} shapes are there?"])
    pic, shapes = pictures.scene(r, 4, 3)
    put("picture: scene 2 (thinking off)", conv(None), [pic, "Describe the picture."])
    a, b = pictures.scene(r, 3), pictures.scene(r, 3)
    put("two pictures", conv(), [a[0], b[0], "Describe the second picture."])
    return out


@torch.no_grad()
def main(data_dir, target, draft_dir, out_dir):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    os.makedirs(out_dir, exist_ok=True)
    data = Data(data_dir, 0)
    w, d = export.load(target, device=device), export.load(draft_dir, device=device)
    engine = Engine(w, device)
    tables = draft_module.rope_table(4096, device)
    entries = []
    for i, (name, q) in enumerate(questions(data)):
        feats, files = {}, []
        for k, (first, pic) in enumerate(q.pictures):
            x = engine.features(pic)
            feats.update({first + j: x[j] for j in range(pic.tokens)})
            Image.fromarray(pic.rgb).save(f"{out_dir}/p{i:02d}_{k}.png", optimize=True)
            files.append({"file": f"p{i:02d}_{k}.png", "first_pad": first, "tokens": pic.tokens})
        new = 160 if name.startswith("sort") else 96
        run = Runner(engine, 1, len(q.ids) + new, taps=True)
        got, taps, kept, margin = run.run([(q.ids, feats)], new, EOM, keep_logits=[0])
        ids = q.ids + got[0]
        kept[0].float().cpu().numpy().astype("<f4").tofile(f"{out_dir}/p{i:02d}.f32")
        e = {"name": name, "prompt_ids": q.ids, "greedy_ids": got[0], "prompt_text": data.tok.decode(q.ids),
             "greedy_text": data.tok.decode(got[0]), "min_margin": round(margin[0], 4), "images": files,
             "last_logits": f"p{i:02d}.f32"}
        if len(got[0]) > 1:
            toks, conf = guesses(w, d, taps[0, :len(ids)].flatten(1), ids,
                                 list(range(len(q.ids), len(ids))), tables)
            e["draft_cycles"] = [{"anchor": p, "drafts": toks[p - len(q.ids)], "accepted": a,
                                  "confidence": [round(x, 4) for x in conf[p - len(q.ids)]]}
                                 for p, a in cycles(ids, len(q.ids), toks)]
        entries.append(e)
        print(f"{i:2d} {name:34s} margin {margin[0]:8.3f}  {e['greedy_text'][:150]!r}", flush=True)
    with open(f"{out_dir}/golden.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in entries) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:5])
