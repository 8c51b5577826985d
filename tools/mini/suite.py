"""Held-out questions: prompts, the expected answers, and how an answer is judged."""
import dataclasses, random
import pictures, tasks, tools_task
from chat import Conversation
from pictures import CLASSES


@dataclasses.dataclass
class Question:
    ids: list               # the prompt, up to and including the opener of the first channel
    pictures: list          # [(index of the first pad, Picture)]
    answer: list            # the taught answer, through end_of_msg
    tag: str = ""
    turn: object = None     # the turn itself, where it is the whole conversation
    effort: object = None


def ask(conv, turn, tag=""):
    """Question from the conversation so far and a turn; `conv` is used up."""
    alone = not conv.ids or (conv.thinking and len(conv.ids) == len(conv.fmt.effort(conv.thinking)))
    conv.user(turn.user)
    start = len(conv.ids)
    answer = conv.assistant(turn.think, turn.response, turn.calls)
    ids = conv.ids[:len(conv.ids) - len(answer)]
    assert start < len(ids)
    return Question(ids, conv.pictures, answer, tag, turn if alone else None, conv.thinking)


class Suite:
    def __init__(self, data, seed=20260):
        self.d, self.r, self.fmt = data, random.Random(seed), data.fmt
        self.open_response = self.fmt.open("response")
        self.close_response = self.fmt.close("response")

    def conv(self, thinking=True, tools=None):
        return Conversation(self.fmt, self.r.choice(["low", "high", "max"]) if thinking else None, tools)

    def simple(self, n, fn, thinking=True):
        return [ask(self.conv(thinking), fn(self.r)) for _ in range(n)]

    def fashion(self, n):
        f, out = self.d.fashion, []
        for i in range(n):
            t = pictures.fashion_turn(self.r, f.test_x[i], f.test_y[i], vary=False)
            out.append(ask(self.conv(), t, CLASSES[f.test_y[i]]))
        return out

    def test_photo(self, r):
        i = r.randrange(len(self.d.fashion.test_x))
        return self.d.fashion.test_x[i], int(self.d.fashion.test_y[i])

    def recall(self, n, filler, keys=None):
        """keys: how many are planted (None: 1 to 6); one is asked for."""
        out, planted = [], keys
        for _ in range(n):
            lines, keys = self.d.recall_parts(self.r, filler, True, planted)
            tag = "" if planted == 1 else f"{len(keys)} keys"
            out.append(ask(self.conv(), tasks.key_turn([self.r.choice(keys)], lines), tag))
        return out

    def tool(self, n, several=False, after=False, thinking=True):
        out, r = [], self.r
        while len(out) < n:
            declared = tools_task.declare(r, r.choice(list(tools_task.TOOLS)))
            names = [d["function"]["name"] for d in declared]
            t = tools_task.several_calls(r, names) if several else tools_task.one_call(r, r.choice(names))
            conv = self.conv(thinking, declared)
            if not after:
                out.append(ask(conv, t))
                continue
            conv.user(t.user)
            conv.assistant(t.think, t.response, t.calls)
            for i, ((name, _), text) in enumerate(zip(t.calls, t.results)):
                conv.tool_result(name, i + 1, text)
            answer = conv.assistant("Say it.", t.after)
            out.append(Question(conv.ids[:len(conv.ids) - len(answer)], [], answer))
        return out

    def no_tool(self, n):
        out = []
        for _ in range(n):
            declared = tools_task.declare(self.r, self.r.choice(list(tools_task.TOOLS)))
            t = tasks.add(self.r, True) if self.r.random() < 0.5 else tasks.fact(self.r)
            out.append(ask(self.conv(True, declared), t))
        return out

    def turns(self, n):
        """The third question of a conversation about different things."""
        out = []
        for _ in range(n):
            conv = self.conv(self.r.random() < 0.7)
            for _ in range(2):
                t = tasks.chat_turn(self.r)
                conv.user(t.user)
                conv.assistant(t.think, t.response)
            out.append(ask(conv, tasks.chat_turn(self.r)))
        return out

    def continuation(self, n):
        return [ask(self.conv(), self.d.continuation(self.r, held=True)) for _ in range(n)]

    def plain(self, n, least=24):
        """Plain text without any chat format: `least` ids of held-out paragraphs and up to 35 more."""
        out = []
        for _ in range(n):
            ids = []
            while len(ids) < least + 36:
                ids += [x for p in self.d.corpus.run(self.r, least + 36 - len(ids), held=True) for x in p]
            out.append(Question(ids[:self.r.randrange(least, least + 36)], [], []))
        return out

    def all(self, f=1.0):
        """name -> (questions, judge, goal). f scales the numbers of questions down for trials."""
        n = lambda k: max(4, int(k * f))
        pair = lambda r: pictures.pair_turn(r, self.test_photo)
        held = lambda fn, digits: (lambda r: fn(r, True, digits))
        R, A = "response", "all"
        return {
            "sum of two 3-digit numbers": (self.simple(n(1000), held(tasks.add, 3)), R, 99),
            "sum, 1-3 digits": (self.simple(n(500), held(tasks.add, 0)), R, None),
            "sum, 3 digits, thinking off": (self.simple(n(1000), held(tasks.add, 3), False), R, 99),
            "difference of two 3-digit numbers": (self.simple(n(1000), held(tasks.sub, 3)), R, 98),
            "difference, 1-3 digits": (self.simple(n(500), held(tasks.sub, 0)), R, None),
            "difference, 3 digits, thinking off": (self.simple(n(1000), held(tasks.sub, 3), False), R, 95),
            "counting": (self.simple(n(500), tasks.count), R, 98),
            "counting, thinking off": (self.simple(n(300), tasks.count, False), R, None),
            "sorting": (self.simple(n(500), tasks.sort), R, 98),
            "reversing": (self.simple(n(500), tasks.reverse), R, 98),
            "copying": (self.simple(n(500), tasks.copy), R, 98),
            "facts (table is trained)": (self.simple(n(300), tasks.fact), R, None),
            "short recall": (self.simple(n(300), tasks.short_recall), R, None),
            "third question of a conversation": (self.turns(n(300)), R, None),
            "Fashion-MNIST test set": (self.fashion(n(10000)), R, 90),
            "drawn scenes": (self.simple(n(1000), pictures.scene_turn), R, 96),
            "drawn scenes, thinking off": (self.simple(n(500), pictures.scene_turn, False), R, None),
            "two pictures": (self.simple(n(500), pair), R, 97),
            "planted key, 100 tokens of filler": (self.recall(n(300), 100, 1), R, 97),
            "planted key, 800": (self.recall(n(300), 800, 1), R, 97),
            "planted key, 1,800": (self.recall(n(200), 1800, 1), R, 97),
            "one of 1 to 6 planted keys, 100": (self.recall(n(500), 100), R, None),
            "one of 1 to 6 planted keys, 800": (self.recall(n(300), 800), R, None),
            "one of 1 to 6 planted keys, 1,800": (self.recall(n(200), 1800), R, None),
            "one tool call": (self.tool(n(1000)), A, 99),
            "one tool call, thinking off": (self.tool(n(300), thinking=False), A, None),
            "several tool calls": (self.tool(n(500), several=True), A, 97),
            "answer after one result": (self.tool(n(300), after=True), R, None),        # report.py joins the two
            "answer after several results": (self.tool(n(300), several=True, after=True), R, None),
            "tools declared, none needed": (self.no_tool(n(200)), R, None),
            "text continuation in chat": (self.continuation(n(200)), None, None),
            "plain text": (self.plain(n(200)), None, None),
            "plain text after 1,800 tokens": (self.plain(n(100), 1800), None, None),
        }

    def response(self, ids):
        """The response channel of an answer, or everything if it was opened by the prompt."""
        o, k = self.open_response, self.close_response
        for i in range(len(ids) - len(o) + 1):
            if ids[i:i + len(o)] == o:
                ids = ids[i + len(o):]
                break
        for i in range(len(ids) - len(k) + 1):
            if ids[i:i + len(k)] == k:
                return ids[:i]
        return None

    def after_think(self, ids):
        k = self.fmt.close("think")
        for i in range(len(ids) - len(k) + 1):
            if ids[i:i + len(k)] == k:
                return ids[i + len(k):]
        return ids

    def right(self, q, ids, judge):
        if judge == "all":
            return self.after_think(ids) == self.after_think(q.answer)
        return self.response(ids) == self.response(q.answer)
