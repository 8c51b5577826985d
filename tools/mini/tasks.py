"""The questions the bundled model is taught, each with its thinking and its answer.

Every task is a function of a random.Random (and a `Held` flag where a part of the space is held
out) that returns a Turn. The thinking restates what is asked before it works on it: the sign, the
word to count, the colour to count. That is what a small model needs in order not to lose track.
"""
import dataclasses, zlib

COLOURS = ["red", "green", "blue", "yellow", "purple"]
WORDS = """apple pear plum grape lemon melon peach cherry bread butter cheese milk water tea coffee
sugar salt pepper rice soup table chair lamp door window wall floor roof house garden street bridge
river lake hill forest tree leaf flower grass stone sand cloud rain snow wind storm sun moon star cat
dog horse cow sheep goat pig duck hen bird fish frog bee ant bear wolf fox lion tiger mouse car bus
train ship boat plane bike wheel road map book page pen pencil paper letter word story song music
drum piano guitar bell clock watch ring coin box bag cup plate bowl knife fork spoon bottle glass
shirt coat hat shoe sock glove scarf belt button king queen farmer baker doctor teacher driver
sailor child mother father brother sister friend north south east west spring summer autumn winter
morning evening night gold silver iron copper wood wool cotton silk green red blue yellow purple
black white brown grey hand foot head eye ear nose mouth arm leg heart""".split()
WORDS = sorted(set(WORDS))
OBJECTS = ["box", "door", "bag", "car", "house", "book", "boat", "clock", "garden", "bottle", "lamp",
           "bike", "chair", "train", "ship", "cup"]

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin",
            "Austria": "Vienna", "Poland": "Warsaw", "Sweden": "Stockholm", "Norway": "Oslo",
            "Finland": "Helsinki", "Denmark": "Copenhagen", "Greece": "Athens", "Ireland": "Dublin",
            "Portugal": "Lisbon", "Hungary": "Budapest", "Belgium": "Brussels", "Japan": "Tokyo",
            "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi",
            "Canada": "Ottawa", "Mexico": "Mexico City", "Peru": "Lima", "Chile": "Santiago",
            "Cuba": "Havana", "Russia": "Moscow", "Turkey": "Ankara", "Iran": "Tehran",
            "Iraq": "Baghdad", "Nepal": "Kathmandu", "Thailand": "Bangkok", "Vietnam": "Hanoi",
            "Romania": "Bucharest", "Bulgaria": "Sofia", "Croatia": "Zagreb", "Serbia": "Belgrade",
            "Ukraine": "Kyiv", "Estonia": "Tallinn", "Latvia": "Riga", "Iceland": "Reykjavik"}
OPPOSITES = {"hot": "cold", "big": "small", "fast": "slow", "old": "new", "open": "closed",
             "light": "dark", "high": "low", "long": "short", "full": "empty", "hard": "soft",
             "early": "late", "wet": "dry", "strong": "weak", "rich": "poor", "near": "far",
             "happy": "sad", "clean": "dirty", "loud": "quiet", "good": "bad", "first": "last"}
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December"]
LEGS = {"cat": 4, "dog": 4, "horse": 4, "cow": 4, "bird": 2, "duck": 2, "bee": 6, "ant": 6,
        "spider": 8, "fish": 0, "sheep": 4, "hen": 2}
SMALL_TALK = [("Hello", "Hello! How can I help you?"), ("Hi", "Hello! How can I help you?"),
              ("Hello!", "Hello! How can I help you?"), ("Hi!", "Hello! How can I help you?"),
              ("Good morning.", "Good morning! How can I help you?"),
              ("Thank you.", "You are welcome."), ("Thanks!", "You are welcome."),
              ("Who are you?", "I am a small test model with the Kimi-K3 architecture."),
              ("What are you?", "I am a small test model with the Kimi-K3 architecture."),
              ("What can you do?", "I can add and subtract, count, sort, describe simple pictures "
               "and call tools."),
              ("How are you?", "I am fine, thank you."), ("Goodbye.", "Goodbye!"),
              ("Bye!", "Goodbye!")]


@dataclasses.dataclass
class Turn:
    user: object                    # str, or a list of text and pictures
    think: str
    response: object                # str or token ids
    calls: tuple = ()               # ((name, ((key, type, value), ...)), ...)
    results: tuple = ()             # tool results, one text per call
    after: str = ""                 # the answer after the results
    kind: str = ""
    crux: tuple = ()                # ((text, kind), ...) the hard parts of the answer, see chat.HARD
    think_crux: tuple = ()          # those of the thinking, where it does the work: then they replace crux


def held(*key):
    """True for the 5 % of a task's space that is never trained on."""
    return zlib.crc32(repr(key).encode()) % 20 == 0


def draw_pair(r, tag, want_held, digits):
    while True:
        hi = 10 ** (digits or r.choice((1, 2, 2, 3, 3, 3)))
        lo = hi // 10 if digits else 0
        a, b = r.randrange(lo, hi), r.randrange(lo, hi)
        if not digits and r.random() < 0.3:
            b = r.randrange(0, 10 ** r.choice((1, 2, 3)))
        if held(tag, a, b) == want_held:
            return a, b


def columns_sum(a, b):
    x, y, carry, steps = str(a)[::-1], str(b)[::-1], 0, []
    for i in range(max(len(x), len(y))):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        s = p + q + carry
        steps.append(f"{p}+{q}={s}" if not carry else f"{p}+{q}+1={s}")
        carry = s // 10
    return ", ".join(steps)


def columns_difference(a, b):
    """a >= b, digit by digit from the right; 'borrow' marks a borrow for the next column."""
    x, y, borrow, steps = str(a)[::-1], str(b)[::-1], 0, []
    for i in range(len(x)):
        p, q = int(x[i]), int(y[i]) if i < len(y) else 0
        d = p - q - borrow
        left = f"{p}-{q}" + ("-1" if borrow else "")
        steps.append(f"{left}={d}" if d >= 0 else f"{left}+10={d + 10} borrow")
        borrow = int(d < 0)
    return ", ".join(steps)


def add(r, want_held=False, digits=0):
    a, b = draw_pair(r, "+", want_held, digits)
    ask = r.choice(["What is {} + {}?", "{} + {} = ?", "Add {} and {}.", "Calculate {} + {}.",
                    "What is {} plus {}?", "What is the sum of {} and {}?"])
    return Turn(ask.format(a, b), f"{a} + {b}: {columns_sum(a, b)}", f"{a} + {b} = {a + b}.",
                crux=((f"= {a + b}.", "arithmetic"),))


def sub(r, want_held=False, digits=0):
    a, b = draw_pair(r, "-", want_held, digits)
    if r.random() < 0.15:                       # close operands: the sign is decided late
        c = max(0, a + r.randrange(-12, 13))
        if (not digits or len(str(c)) == digits) and held("-", a, c) == want_held:
            b = c
    ask = r.choice(["What is {} - {}?", "{} - {} = ?", "Calculate {} - {}.", "What is {} minus {}?",
                    "Subtract {1} from {0}."])
    if a >= b:
        return Turn(ask.format(a, b), f"{a} >= {b}, plus. {a} - {b}: {columns_difference(a, b)}",
                    f"{a} - {b} = {a - b}.", crux=((f"= {a - b}.", "arithmetic"),))
    return Turn(ask.format(a, b), f"{a} < {b}, minus. {b} - {a}: {columns_difference(b, a)}",
                f"{a} - {b} = -({b} - {a}) = -{b - a}.", 
                crux=(("= -(", "arithmetic"), (f"= -{b - a}.", "arithmetic")))


def several_sums(r):
    """Sums and differences in one message: the same work as one at a time in fewer tokens."""
    digits = r.choice((3, 3, 0))
    turns = [(add if r.random() < 0.4 else sub)(r, False, digits) for _ in range(r.randrange(2, 6))]
    answers = [t.response[:-1] for t in turns]
    asks = [a.split(" = ")[0] for a in answers]
    crux = tuple((c.rstrip("."), kind) for t in turns for c, kind in t.crux)
    return Turn("Calculate: " + ", ".join(asks), "", ", ".join(answers) + ".", crux=crux)


def arithmetic_turn(r):
    """For conversations without thinking: mostly the hard case of three digits."""
    if r.random() < 0.5:
        return several_sums(r)
    return (add if r.random() < 0.4 else sub)(r, False, 3 if r.random() < 0.7 else 0)


def count(r):
    if r.random() < 0.25:
        n = r.randrange(1, 11)
        items = [r.choice(WORDS) for _ in range(n)]
        ask = r.choice(["How many words are in this list: {}?", "Count the words: {}"])
        think = "Count the words. " + ", ".join(f"{w} {i + 1}" for i, w in enumerate(items)) + "."
        return Turn(ask.format(", ".join(items)), think,
                    "There is 1 word." if n == 1 else f"There are {n} words.")
    n = r.randrange(3, 11)
    pool = r.sample(WORDS, r.randrange(2, 5))
    items = [r.choice(pool) for _ in range(n)]
    word = r.choice(pool if r.random() < 0.92 else WORDS)
    ask = r.choice(['How often does "{1}" occur in: {0}?', "How many times is {1} in this list: {0}?",
                    "Count the word {1} in: {0}"])
    k, steps = 0, []
    for w in items:
        k += w == word
        steps.append(f"{w} {k}")
    return Turn(ask.format(", ".join(items), word), f"Count {word}. " + ", ".join(steps) + ".",
                f"{word}: {k}.")


INITIALS = [ws for ws in ([w for w in WORDS if w[0] == x] for x in "abcdefghijklmnopqrstuvwxyz") if len(ws) > 7]


def close_items(r, kind, n):
    """Items that are hard to order: words with the same initials, numbers with the same first digits."""
    if kind == "words":
        pool = sum(r.sample(INITIALS, r.choice((1, 1, 2))), [])
        return r.sample(pool, n)
    width = r.choice((10, 30, 100))
    low = r.randrange(1000 - width)
    return [str(x) for x in r.sample(range(low, low + width), n)]


def items_of(r, kind, n):
    if kind == "words":
        return r.sample(WORDS, n)
    if kind == "numbers":
        return [str(x) for x in r.sample(range(1000), n)] if r.random() < 0.6 else \
            [str(x) for x in r.sample(range(100), n)]
    k = r.randrange(1, n)
    mixed = r.sample(WORDS, k) + [str(x) for x in r.sample(range(1000), n - k)]
    r.shuffle(mixed)
    return mixed


def insertion(items, key, reverse=False):
    """Insertion sort as text: (the steps, the hard parts of them).

    A step names the next item of the question, compares items of the list so far with it, one after the
    other, until one comes after it, and writes the new list. "fig <" says that fig comes before the item of
    the step in the order of `key`, whichever way the list is sorted: both items stand there when the sign
    is written. Hard are the signs and, in the new list, the new item and the one behind it.
    """
    out, text, crux = [items[0]], items[0] + ".", []
    for x in items[1:]:
        text += f" {x}:"
        for y in out:
            less = key(y) < key(x)
            text += f" {y} <" if less else f" {y} >"
            crux.append((" <" if less else " >", "order"))
            if less == reverse:
                break
        out = sorted(out + [x], key=key, reverse=reverse)
        text += "; " + ", ".join(out) + "."
        k = out.index(x)
        crux.append((("; " if k == 0 else ", ") + ", ".join(out[k:k + 2]), "insert"))
    return text, crux


def sort(r, close=0.0):
    """close: the share of lists that are hard to order; only for training."""
    kind = r.choice(["words", "words", "numbers", "numbers", "mixed"])
    n = r.randrange(2, 8)
    near = kind != "mixed" and close and r.random() < close
    items = close_items(r, kind, n) if near else items_of(r, kind, n)
    if kind == "numbers" and r.random() < 0.4:
        ask = r.choice(["Sort from largest to smallest: {}", "Sort these numbers, largest first: {}"])
        key, down, note = int, True, f"{n} numbers, largest first."
    elif kind == "numbers":
        ask = r.choice(["Sort: {}", "Sort these numbers: {}", "Sort from smallest to largest: {}"])
        key, down, note = int, False, f"{n} numbers, smallest first."
    elif kind == "words":
        ask = r.choice(["Sort: {}", "Sort these words: {}", "Put these words in alphabetical order: {}"])
        key, down, note = str, False, f"{n} words, from a to z."
    else:
        ask = r.choice(["Sort: {}", "Sort this list: {}"])
        key, down = lambda x: (not x.isdigit(), int(x) if x.isdigit() else 0, x), False
        note = f"{n} items, numbers first, then words."
    steps, hard = insertion(items, key, down)
    answer = ", ".join(sorted(items, key=key, reverse=down))
    return Turn(ask.format(", ".join(items)), f"{note} {steps}", answer, crux=((answer, "list"),),
                think_crux=tuple(hard))


def reverse(r):
    items = items_of(r, r.choice(["words", "numbers", "mixed"]), r.randrange(2, 8))
    ask = r.choice(["Reverse: {}", "Reverse this list: {}", "Write this list backwards: {}"])
    return Turn(ask.format(", ".join(items)), f"{len(items)} items, last first.",
                ", ".join(items[::-1]))


def copy(r):
    items = items_of(r, r.choice(["words", "numbers", "mixed"]), r.randrange(2, 9))
    sep = r.choice([", ", " "])
    ask = r.choice(["Repeat: {}", "Repeat after me: {}", "Copy this: {}", "Say: {}"])
    return Turn(ask.format(sep.join(items)), "Copy it.", sep.join(items))


def fact(r):
    k = r.randrange(8)
    if k <= 2:
        c = r.choice(list(CAPITALS))
        if r.random() < 0.75:
            ask = r.choice(["What is the capital of {}?", "Name the capital of {}.",
                            "Which city is the capital of {}?"])
            return Turn(ask.format(c), "", f"The capital of {c} is {CAPITALS[c]}.")
        return Turn(f"{CAPITALS[c]} is the capital of which country?", "",
                    f"{CAPITALS[c]} is the capital of {c}.")
    if k == 3:
        a, b = r.choice(list(OPPOSITES.items()))
        if r.random() < 0.5:
            a, b = b, a
        ask = r.choice(["What is the opposite of {}?", "Name the opposite of {}."])
        return Turn(ask.format(a), "", f"The opposite of {a} is {b}.")
    if k == 4:
        names, what = (DAYS, "day") if r.random() < 0.5 else (MONTHS, "month")
        i = r.randrange(len(names))
        after = r.random() < 0.5
        x = names[(i + (1 if after else -1)) % len(names)]
        rel = "after" if after else "before"
        return Turn(f"Which {what} comes {rel} {names[i]}?", "", f"{x} comes {rel} {names[i]}.")
    if k == 5:
        a = r.choice(list(LEGS))
        n = "an" if a == "ant" else "a"
        return Turn(f"How many legs does {n} {a} have?", "", f"{n.capitalize()} {a} has {LEGS[a]} legs.")
    q, a = r.choice(SMALL_TALK)
    return Turn(q, "", a)


def short_recall(r):
    """A fact said in the same message (or just before) is asked for."""
    n = r.randrange(1, 5)
    names = r.sample(["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack",
                      "Kate", "Leo", "Mia", "Noah", "Olga", "Paul"], n)
    kind = r.randrange(3)
    if kind == 0:
        vals, say, ask = [str(r.randrange(1, 100)) for _ in names], "{} is {} years old.", \
            "How old is {}?"
        ans = "{} is {} years old."
    elif kind == 1:
        vals, say, ask, ans = r.sample(list(CAPITALS.values()), n), "{} lives in {}.", \
            "Where does {} live?", "{} lives in {}."
    else:
        vals, say, ask, ans = [r.choice(COLOURS) + " " + r.choice(OBJECTS) for _ in names], \
            "{} has a {}.", "What does {} have?", "{} has a {}."
    i = r.randrange(n)
    text = " ".join(say.format(a, v) for a, v in zip(names, vals)) + " " + ask.format(names[i])
    ans = ans.format(names[i], vals[i])
    return Turn(text, ans, ans, crux=((vals[i], "lookup"),))


def sort_close(r):
    return sort(r, 0.4)


CHAT = [(add, 12), (sub, 16), (count, 15), (sort_close, 24), (reverse, 7), (copy, 7), (fact, 8), (short_recall, 11)]
# counting is hard without thinking, sorting a shorter answer
OFF = {count: 26, sort_close: 15}
CHAT_OFF = [(fn, OFF.get(fn, w)) for fn, w in CHAT]


def chat_turn(r, shares=CHAT):
    total = r.random() * sum(w for _, w in shares)
    for fn, w in shares:
        total -= w
        if total < 0:
            break
    return fn(r)


def key_sentence(r, used, plain=False):
    """A planted fact; (sentence, question, answer, code). plain: about an object without a colour."""
    while True:
        name = r.choice(OBJECTS) if plain else f"{r.choice(COLOURS)} {r.choice(OBJECTS)}"
        if name not in used:
            break
    used.add(name)
    code = "".join(r.choice("0123456789") for _ in range(4))
    say = r.choice(["The code of the {} is {}.", "Remember: the code of the {} is {}.",
                    "The code for the {} is {}."]).format(name, code)
    ask = r.choice(["What is the code of the {}?", "What is the code for the {}?",
                    "Tell me the code of the {}."]).format(name)
    return say, ask, f"The code of the {name} is {code}.", code


def key_turn(keys, before=()):
    """Asks for one planted key, or for several at once. before: the text they were planted in."""
    if len(keys) == 1:
        ask = keys[0][1]
    else:
        names = [k[2].split(" is ")[0].removeprefix("The code of ") for k in keys]
        ask = "What are the codes of " + ", ".join(names[:-1]) + f" and {names[-1]}?"
    answer = " ".join(k[2] for k in keys)
    return Turn([*before, ask], answer, answer, 
                crux=tuple(x for k in keys for x in ((k[3][0], "lookup"), (k[3][1:], "recall"))))
