"""bench_prompts.py > bench/prompts/mini.jsonl: chat requests from the bundled model's own domain, for `k3 bench --prompts`.

Held-out questions of every kind of text task that is taught without filler text, with the three efforts and without thinking, in
random order from a fixed seed. They are not the questions of the evaluation (suite.py), whose seed is another.
"""
import json, random
import tasks, tools_task

SEED = 51


def held(task, digits):
    return lambda r: task(r, True, digits)


def key(r):
    """One of two to five planted codes, without filler."""
    used = set()
    keys = [tasks.key_sentence(r, used) for _ in range(r.randrange(2, 6))]
    turn = tasks.key_turn([r.choice(keys)])
    turn.user = "\n".join([k[0] for k in keys] + [turn.user[-1]])
    return turn


# (task, questions with thinking, questions without)
KINDS = [(held(tasks.add, 3), 4, 2), (held(tasks.sub, 3), 4, 2), (tasks.count, 3, 0), (tasks.sort, 3, 0), (tasks.reverse, 2, 0),
         (tasks.copy, 2, 0), (tasks.fact, 2, 1), (tasks.short_recall, 2, 0), (key, 2, 0)]
# shares of a conversation's turns; not those of the training, so that the file stays the same when they change
TURNS = [(tasks.add, 12), (tasks.sub, 16), (tasks.count, 15), (lambda r: tasks.sort(r, 0.4), 24), (tasks.reverse, 7),
         (tasks.copy, 7), (tasks.fact, 8), (tasks.short_recall, 11)]


def request(r, messages, thinking, **more):
    effort = r.choice(["low", "high", "max"]) if thinking else "none"
    return {"messages": messages, "reasoning_effort": effort, **more}


def user(text):
    return {"role": "user", "content": text}


def third_question(r):
    messages = []
    for _ in range(2):
        turn = tasks.chat_turn(r, TURNS)
        messages += [user(turn.user), {"role": "assistant", "content": turn.response}]
    return request(r, messages + [user(tasks.chat_turn(r, TURNS).user)], True)


def tools(r, several):
    declared = tools_task.declare(r, r.choice(list(tools_task.TOOLS)))
    names = [d["function"]["name"] for d in declared]
    turn = tools_task.several_calls(r, names) if several else tools_task.one_call(r, r.choice(names))
    return request(r, [user(turn.user)], True, tools=declared)


def main():
    r = random.Random(SEED)
    out = [request(r, [user(task(r).user)], thinking)
           for task, on, off in KINDS for thinking in [True] * on + [False] * off]
    out += [third_question(r), tools(r, False), tools(r, True)]
    r.shuffle(out)
    for x in out:
        print(json.dumps(x))


main()
