"""Writes the evaluation table and the loss curves.

    python report.py RESULTS.json MODEL_DIR LEG.json [LEG.json ...] -- DRAFT.json [DRAFT.json ...]

puts the table between the two marker lines of MODEL_DIR/README.md and writes MODEL_DIR/curves.svg.
"""
import json, re, sys

MARK = ("<!-- table -->", "<!-- /table -->")
AFTER = ("answer after one result", "answer after several results")      # one goal for both together


def with_joint(tasks):
    """The tasks, with one more row behind those of AFTER: both together."""
    for name, t in tasks.items():
        yield name, t
        if name == AFTER[-1] and all(k in tasks for k in AFTER):
            n = sum(tasks[k]["n"] for k in AFTER)
            yield "answer after results, both together", {
                "n": n, "goal": 97, "right": sum(tasks[k]["n"] * tasks[k]["right"] for k in AFTER) / n}


def table(r):
    out = ["| task | n | right | goal | draft length |", "| --- | --- | --- | --- | --- |"]
    for name, t in with_joint(r["tasks"]):
        right = f"{t['right']:.1f} %" if "right" in t else ""
        goal = f"{t['goal']} %" if t["goal"] else ""
        if goal and t["right"] < t["goal"]:
            right = f"**{right}**"
        d = t.get("draft", {}).get("length", "")
        out.append(f"| {name} | {t['n']} | {right} | {goal} | {d if d == '' else f'{d:.2f}'} |")
    x = r.get("text")
    bold = "**" if x and x["loss"] > 3.2 else ""
    if x:
        out.append(f"| held-out text, loss per token | {x['tokens']} | {bold}{x['loss']:.2f}{bold} | <= 3.2 | |")
    if "draft" in r:
        v = r["draft"]["length over all cycles"]
        bold = "**" if v < 6 else ""
        out.append(f"| all draft cycles | | | >= 6 | {bold}{v:.2f}{bold} |")
        if "length on random tokens" in r["draft"]:
            out.append(f"| random tokens | | | near 1 | {r['draft']['length on random tokens']:.2f} |")
    return out


def smooth(points, n=9):
    return [(x, sum(p[1] for p in points[max(0, i - n):i + n + 1]) /
             len(points[max(0, i - n):i + n + 1])) for i, (x, _) in enumerate(points)]


def panel(y0, title, series, unit):
    """One chart of 640 x 190 at height y0. series: [(label, colour, [(x, y)])]."""
    xs = [x for _, _, pts in series for x, _ in pts]
    top = max(y for _, _, pts in series for _, y in pts)
    right = max(xs)
    px = lambda x: 50 + 560 * x / right
    py = lambda y: y0 + 160 - 130 * y / top
    out = [f'<text x="50" y="{y0 + 18}" font-weight="bold">{title}</text>',
           f'<path d="M50 {y0 + 30}V{y0 + 160}H610" fill="none" stroke="#888"/>',
           f'<text x="610" y="{y0 + 175}" text-anchor="end">{right:g} {unit}</text>',
           f'<text x="45" y="{y0 + 38}" text-anchor="end">{top:.2g}</text>',
           f'<text x="45" y="{y0 + 163}" text-anchor="end">0</text>']
    for i, (label, colour, pts) in enumerate(series):
        d = "M" + "L".join(f"{px(x):.1f} {py(y):.1f}" for x, y in pts)
        out.append(f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out.append(f'<text x="{330 + 100 * i}" y="{y0 + 18}" fill="{colour}">{label}</text>')
    return out


def curves(legs, drafts, path):
    body, y = [], 0
    for k, leg in enumerate(legs):
        col = lambda c: smooth([(r[1], r[c]) for r in leg["log"] if r[0] % 50 == 0])
        name = "target" if len(legs) == 1 else f"target, leg {k + 1}"
        at = leg["columns"].index
        body += panel(y, name + ": loss", [("text and answers", "#1f5fbf", col(at("loss")))], "s")
        y += 190
        body += panel(y, name + ": accuracy", [("all", "#1f5fbf", col(at("accuracy"))),
                                               ("keys", "#c05020", col(at("lookup"))),
                                               ("sums", "#2a8040", col(at("arithmetic")))], "s")
        y += 190
    for k, d in enumerate(drafts):
        col = lambda c: smooth([(r[1], r[c]) for r in d["log"]])
        body += panel(y, f"draft, leg {k + 1}", [("loss", "#1f5fbf", col(3)), ("1st", "#c05020", col(4)),
                                                 ("7th", "#2a8040", col(10))], "s")
        y += 190
    with open(path, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{y}" font-family="sans-serif" '
                f'font-size="12"><rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body)
                + "\n</svg>\n")


def main(results, model, *files):
    cut = files.index("--")
    load = lambda f: json.load(open(f))
    curves([load(f) for f in files[:cut]], [load(f) for f in files[cut + 1:]], f"{model}/curves.svg")
    text = open(f"{model}/README.md").read()
    new = "\n".join([MARK[0], *table(load(results)), MARK[1]])
    text = re.sub(re.escape(MARK[0]) + ".*" + re.escape(MARK[1]), lambda _: new, text, flags=re.S)
    open(f"{model}/README.md", "w").write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
