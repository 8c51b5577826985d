"""Tool use: declarations, one or several calls, the answer after the results."""
from tasks import CAPITALS, WORDS, Turn, add, fact

CITIES = list(CAPITALS.values())
PEOPLE = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack"]


def spec(name, description, props, required=None):
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object", "properties": props,
                       "required": list(props) if required is None else required}}}


def s(**kw):
    return {"type": "string", **kw}


# name -> (spec, question maker). A maker returns (question, arguments, result, answer).
def weather(r):
    c = r.choice(CITIES)
    t = r.randrange(-9, 35)
    return (r.choice([f"What is the weather in {c}?", f"How warm is it in {c}?",
                      f"Weather in {c}, please."]), (("city", "string", c),), f"{t} C",
            f"It is {t} C in {c}.", c)


def time_in(r):
    c = r.choice(CITIES)
    t = f"{r.randrange(24)}:{r.randrange(60):02d}"
    return (r.choice([f"What time is it in {c}?", f"Tell me the time in {c}."]),
            (("city", "string", c),), t, f"It is {t} in {c}.", c)


def population(r):
    c = r.choice(list(CAPITALS))
    n = r.randrange(1, 1000)
    return (r.choice([f"How many people live in {c}?", f"What is the population of {c}?"]),
            (("country", "string", c),), f"{n} million", f"{n} million people live in {c}.", c)


def email(r):
    p, w = r.choice(PEOPLE), " ".join(r.sample(WORDS, r.randrange(1, 4)))
    return (r.choice([f'Send "{w}" to {p}.', f'Write a message to {p}: "{w}".']),
            (("to", "string", p), ("text", "string", w)), "sent", f"The message to {p} was sent.", p)


def timer(r):
    n = r.randrange(1, 60)
    return (r.choice([f"Set a timer for {n} minutes.", f"Wake me in {n} minutes."]),
            (("minutes", "number", str(n)),), "ok", f"The timer is set for {n} minutes.", f"{n}")


def lamp(r):
    room, on = r.choice(["kitchen", "garden", "bedroom", "hall", "office"]), r.random() < 0.5
    w = "on" if on else "off"
    return (r.choice([f"Turn {w} the light in the {room}.", f"Switch the {room} light {w}."]),
            (("room", "string", room), ("on", "boolean", "true" if on else "false")), "ok",
            f"The light in the {room} is {w}.", room)


def multiply(r):
    a, b = r.randrange(2, 1000), r.randrange(2, 1000)
    return (r.choice([f"What is {a} times {b}?", f"Multiply {a} by {b}."]),
            (("a", "number", str(a)), ("b", "number", str(b))), str(a * b),
            f"{a} times {b} is {a * b}.", f"{a}, {b}")


def search(r):
    q = " ".join(r.sample(WORDS, r.randrange(1, 4)))
    n = r.randrange(0, 100)
    return (r.choice([f'Search for "{q}".', f'Find "{q}" in the library.']),
            (("query", "string", q),), f"{n} results", f'There are {n} results for "{q}".', q)


def price(r):
    w, n = r.choice(WORDS), r.randrange(1, 500)
    return (r.choice([f"What does a {w} cost?", f"What is the price of a {w}?"]),
            (("item", "string", w),), f"{n} euro", f"A {w} costs {n} euro.", w)


def book(r):
    p, n, c = r.choice(PEOPLE), r.randrange(1, 9), r.choice(CITIES)
    return (f"Book a hotel in {c} for {n} nights for {p}.",
            (("city", "string", c), ("nights", "number", str(n)), ("guest", "string", p)), "booked",
            f"The hotel in {c} is booked for {p}.", c)


TOOLS = {
    "get_weather": (spec("get_weather", "Get weather for a city.", {"city": s()}), weather),
    "get_time": (spec("get_time", "Local time in a city.", {"city": s()}), time_in),
    "get_population": (spec("get_population", "Number of people in a country.", {"country": s()}),
                       population),
    "send_message": (spec("send_message", "Send a text to a person.", {"to": s(), "text": s()}),
                     email),
    "set_timer": (spec("set_timer", "Start a timer.", {"minutes": {"type": "number"}}), timer),
    "set_light": (spec("set_light", "Switch a light.", {"room": s(), "on": {"type": "boolean"}}),
                  lamp),
    "multiply": (spec("multiply", "Multiply two numbers.",
                      {"a": {"type": "number"}, "b": {"type": "number"}}), multiply),
    "search": (spec("search", "Search the library.", {"query": s()}), search),
    "get_price": (spec("get_price", "Price of an item.", {"item": s()}), price),
    "book_hotel": (spec("book_hotel", "Book a hotel room.",
                        {"city": s(), "nights": {"type": "number"}, "guest": s()}), book),
}
PLURAL = {"get_weather": "What is the weather in {}?", "get_time": "What time is it in {}?",
          "get_population": "How many people live in {}?", "get_price": "What do these cost: {}?"}


def declare(r, need):
    names = [need] + r.sample([n for n in TOOLS if n != need], r.choice((0, 0, 1, 1, 2)))
    r.shuffle(names)
    return [TOOLS[n][0] for n in names]


def one_call(r, name):
    q, args, result, answer, _ = TOOLS[name][1](r)
    brief = ", ".join(f"{k} {v}" for k, _, v in args)
    return Turn(q, f"Call {name}: {brief}.", "", ((name, args),), (result,), answer)


def several_calls(r, names):
    """2 or 3 calls in one message: one tool over a list, or different tools joined by 'and'."""
    listable = [n for n in names if n in PLURAL]
    if listable and r.random() < 0.6:
        name = r.choice(listable)
        made, seen = [], set()
        for _ in range(r.choice((2, 2, 3))):
            while True:
                m = TOOLS[name][1](r)
                if m[4] not in seen:
                    break
            seen.add(m[4])
            made.append((name, m))
        subjects = [m[4] for _, m in made]
        q = PLURAL[name].format(", ".join(subjects[:-1]) + " and " + subjects[-1])
    else:
        made = [(n, TOOLS[n][1](r)) for n in ([r.choice(names) for _ in range(2)] if len(names) == 1
                                             else r.sample(names, 2))]
        q = " ".join(m[0] for _, m in made)
    brief = " ".join(f"Call {n}: " + ", ".join(f"{k} {v}" for k, _, v in m[1]) + "."
                     for n, m in made)
    return Turn(q, brief, "", tuple((n, m[1]) for n, m in made), tuple(m[2] for _, m in made),
                " ".join(m[3] for _, m in made))


def tool_turn(r, declared):
    names = [d["function"]["name"] for d in declared]
    k = r.random()
    if k < 0.15:
        t = add(r) if r.random() < 0.5 else fact(r)
        t.kind = "tool_not_needed"
        return t
    t = several_calls(r, names) if k < 0.5 else one_call(r, r.choice(names))
    t.kind = "tools"
    return t
