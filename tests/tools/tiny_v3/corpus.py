"""The corpus: everything the tiny model reads is made here, from tables and arithmetic, with a fixed seed.

A *question* belongs to a task and has a key; the key decides (by a hash, so independent of any random state) whether
it is held out. Held-out keys never enter training. For comparison and reversal the key is the numbers or the letters
themselves, unseen in any phrasing. For facts the key is entity x phrasing (a fact that is never shown cannot be known),
and so it is for sums, differences, neighbours and counting: so small a model learns them as tables, so what is tested
is that an unseen question finds the right entry.
"""
import hashlib
import random

from facts import (ANIMALS, CAPITALS, COLOURS, DAYS, FRUITS, HEROES, MONTHS, NAMES, OPPOSITES, PLACES, TREASURES,
                   WEATHER)

HELD_OUT_SHARE = 0.12
HELD_OUT_SHARE_OF_PHRASINGS = 0.25
SYSTEM_PROMPTS = ["You are a helpful assistant.", "Answer in one short sentence.", "You are a friendly teacher."]


def held_out(task, key):
    if key.endswith("/0"):  # a fact's first phrasing is always shown
        return False
    share = HELD_OUT_SHARE_OF_PHRASINGS if "/" in key else HELD_OUT_SHARE
    digest = hashlib.sha256(f"{task}|{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32 < share


# ---------------------------------------------------------------- tasks: rng -> (key, question, answer)

def addition(r):
    a, b = r.randint(0, 30), r.randint(0, 10)
    if r.random() < 0.5:
        a, b = b, a
    asks = ["What is {a} plus {b}?", "How much is {a} plus {b}?", "Add {a} and {b}.", "What is {a} + {b}?"]
    i = r.randrange(len(asks))
    return f"{a}+{b}/{i}", asks[i].format(a=a, b=b), f"{a} plus {b} is {a + b}."


def subtraction(r):
    a = r.randint(0, 30)
    b = r.randint(0, min(a, 10))
    asks = ["What is {a} minus {b}?", "How much is {a} minus {b}?", "Take {b} from {a}.", "What is {a} - {b}?"]
    i = r.randrange(len(asks))
    return f"{a}-{b}/{i}", asks[i].format(a=a, b=b), f"{a} minus {b} is {a - b}."


def neighbour(r):
    n = r.randint(1, 49)
    i = r.randrange(3)
    if r.random() < 0.5:
        asks = ["What number comes after {n}?", "Which number follows {n}?", "What comes after {n}?"]
        return f"+{n}/{i}", asks[i].format(n=n), f"After {n} comes {n + 1}."
    asks = ["What number comes before {n}?", "Which number precedes {n}?", "What comes before {n}?"]
    return f"-{n}/{i}", asks[i].format(n=n), f"Before {n} comes {n - 1}."


def comparison(r):
    a, b = r.sample(range(51), 2)
    big = r.random() < 0.5
    word = "bigger" if big else "smaller"
    first, second = (max(a, b), min(a, b)) if big else (min(a, b), max(a, b))
    asks = ["Which is {w}, {a} or {b}?", "Which number is {w}: {a} or {b}?"]
    return f"{min(a, b)},{max(a, b)}", r.choice(asks).format(w=word, a=a, b=b), f"{first} is {word} than {second}."


def counting(r):
    n = r.randint(0, 45)
    asks = ["Count up from {n}.", "Please count up from {n}.", "Count on from {n}."]
    i = r.randrange(len(asks))
    return f"{n}/{i}", asks[i].format(n=n), ", ".join(str(n + k) for k in range(4)) + "."


def reversal(r):
    letters = [r.choice("abcdefghij") for _ in range(r.randint(2, 4))]
    asks = ["Reverse: {s}", "Write {s} backwards."]
    text = " ".join(letters)
    return text, r.choice(asks).format(s=text), " ".join(reversed(letters)) + "."


def _phrased(r, task_rows):
    """Facts: rows of (entity key, phrasings, answer); the key is entity x phrasing."""
    entity, asks, answer = r.choice(task_rows)
    i = r.randrange(len(asks))
    return f"{entity}/{i}", asks[i], answer


def _capital_rows():
    rows = []
    for country, city in CAPITALS.items():
        rows.append((country, [f"What is the capital of {country}?", f"Name the capital of {country}.",
                               f"Which city is the capital of {country}?", f"Tell me the capital of {country}.",
                               f"Do you know the capital of {country}?"],
                     f"The capital of {country} is {city}."))
        rows.append((city, [f"{city} is the capital of which country?", f"In which country is {city}?",
                            f"Where is {city}?", f"Tell me where {city} is."],
                     f"{city} is in {country}."))
    return rows


def _animal_rows():
    rows = []
    for animal, (legs, sound, food, home, young) in ANIMALS.items():
        a = ("an " if animal[0] in "aeiou" else "a ") + animal
        big = a[0].upper() + a[1:]
        rows += [
            (animal + " legs", [f"How many legs does {a} have?", f"Tell me how many legs {a} has.",
                                f"{big} has how many legs?"], f"{big} has {legs} legs."),
            (animal + " sound", [f"What sound does {a} make?", f"What does {a} sound like?",
                                 f"Tell me what sound {a} makes."], f"{big} {sound}."),
            (animal + " food", [f"What does {a} eat?", f"Tell me what {a} eats.", f"What food does {a} like?"],
             f"{big} eats {food}."),
            (animal + " home", [f"Where does {a} live?", f"Tell me where {a} lives.", f"What is the home of {a}?"],
             f"{big} lives in the {home}."),
            (animal + " young", [f"What is a young {animal} called?", f"Name the young of {a}.",
                                 f"What do you call a young {animal}?"], f"A young {animal} is called a {young}."),
        ]
    return rows


def _word_rows():
    pairs = {**OPPOSITES, **{v: k for k, v in OPPOSITES.items()}}
    rows = [("opp " + a, [f"What is the opposite of {a}?", f"Name the opposite of {a}.",
                          f"Tell me the opposite of {a}."], f"The opposite of {a} is {b}.") for a, b in pairs.items()]
    rows += [("col " + a, [f"What colour is the {a}?", f"Which colour has the {a}?",
                           f"Tell me the colour of the {a}."], f"The {a} is {b}.") for a, b in COLOURS.items()]
    for names, kind in ((DAYS, "day"), (MONTHS, "month")):
        for i, name in enumerate(names):
            nxt = names[(i + 1) % len(names)]
            rows.append((kind + " after " + name, [f"Which {kind} comes after {name}?",
                                                   f"What {kind} follows {name}?", f"Name the {kind} after {name}."],
                         f"After {name} comes {nxt}."))
            rows.append((kind + " before " + nxt, [f"Which {kind} comes before {nxt}?",
                                                   f"Name the {kind} before {nxt}.",
                                                   f"What {kind} is before {nxt}?"],
                         f"Before {nxt} comes {name}."))
    return rows


_CAPITAL_ROWS, _ANIMAL_ROWS, _WORD_ROWS = _capital_rows(), _animal_rows(), _word_rows()

TASKS = {
    "addition": (2.8, addition), "subtraction": (2.5, subtraction), "neighbour": (0.7, neighbour),
    "comparison": (1.6, comparison), "counting": (0.7, counting), "reversal": (1.2, reversal),
    "capitals": (1.2, lambda r: _phrased(r, _CAPITAL_ROWS)), "animals": (1.2, lambda r: _phrased(r, _ANIMAL_ROWS)),
    "words": (1.2, lambda r: _phrased(r, _WORD_ROWS)),
}
_NAMES, _WEIGHTS = list(TASKS), [TASKS[t][0] for t in TASKS]


def question(r, task=None, want_held_out=False):
    """One (task, question, answer) of the training part, or of the held-out part."""
    task = task or r.choices(_NAMES, _WEIGHTS)[0]
    while True:
        key, ask, answer = TASKS[task][1](r)
        if held_out(task, key) == want_held_out:
            return task, ask, answer


# ---------------------------------------------------------------- small talk, memory, tales

def small_talk(r):
    return r.choice([
        [("Hello!", "Hello! How can I help you?")], [("Hi!", "Hello! How can I help you?")],
        [("Who are you?", "I am a very small model.")], [("What can you do?", "I can add, count and tell tales.")],
        [("Thank you!", "You are welcome.")], [("Good morning!", "Good morning! How can I help you?")],
        [("Goodbye!", "Goodbye!")]])


def memory(r, want_held_out=False):
    """A chat whose last answer needs an earlier turn. Held out: the question in the middle is."""
    name, fruit = r.choice(NAMES), r.choice(FRUITS)
    middle = [question(r, None, want_held_out)[1:]] if want_held_out or r.random() < 0.5 else []
    if r.random() < 0.5:
        return [(f"My name is {name}.", f"Nice to meet you, {name}.")] + middle + \
            [("What is my name?", f"Your name is {name}.")]
    return [(f"I am {name} and I like {fruit}.", f"Nice to meet you, {name}.")] + middle + \
        [("What do I like?", f"You like {fruit}.")]


def tale(r):
    hero, place, thing, weather = r.choice(HEROES), r.choice(list(PLACES)), r.choice(list(TREASURES)), \
        r.choice(list(WEATHER))
    name, friend, food = r.choice(NAMES), r.choice(HEROES), r.choice(FRUITS)
    a = "an" if hero[0] in "aeiou" else "a"
    parts = [r.choice([f"Once upon a time there was {a} {hero} named {name}.",
                       f"Long ago, in a quiet {place}, lived {a} {hero} named {name}."]),
             f"{name} lived near the {PLACES[place]} in the {place} and liked to eat {food}.",
             f"One day the {weather} came, and all the {place} was {WEATHER[weather]}.",
             f"Under the {PLACES[place]} {name} found a small {thing}.",
             f"The {thing} {TREASURES[thing]}."]
    if r.random() < 0.6:
        parts.append(f"\"Thank you, {name}!\" said the {friend}.")
    parts.append(r.choice([f"From that day on, {name} and the {friend} were friends.",
                           f"Then {name} went home and ate {food}."]))
    return " ".join(parts)


# ---------------------------------------------------------------- samples, rendered as V3's chat template does

BOS, EOS, USER, ASSISTANT = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")


def render(turns, system=""):
    """BOS, system text, then the turns; the last answer may be None (a prompt)."""
    text = BOS + system
    for ask, answer in turns:
        text += USER + ask + ASSISTANT + ("" if answer is None else answer + EOS)
    return text


def sample(r):
    """One training text: mostly single questions, some longer chats, some tales."""
    p = r.random()
    if p < 0.10:
        return BOS + tale(r) + EOS
    system = r.choice(SYSTEM_PROMPTS) if r.random() < 0.06 else ""
    if p < 0.14:
        turns = memory(r)
    elif p < 0.16:
        turns = small_talk(r) + ([question(r)[1:]] if r.random() < 0.3 else [])
    elif p < 0.24:
        turns = [question(r)[1:] for _ in range(r.randint(2, 4))]
    elif p < 0.25:
        turns = [("Tell me a tale.", tale(r))]
    else:
        turns = [question(r)[1:]]
    return render(turns, system)


def tokenizer_corpus(count=20000, seed=7):
    """Texts for training the BPE: the samples, and a little of everything else that text can hold.

    Numbers up to 50 stand in it often enough to become one token each; zeros merge too, so that V3's split of digit
    runs into threes can be seen in the tests.
    """
    r = random.Random(seed)
    for _ in range(count):
        text = sample(r)
        for special in (BOS, EOS, USER, ASSISTANT):
            text = text.replace(special, "\n")
        yield text
    extras = [
        "The year 1000 and 1000000 stars, 2000 ships and 30000 sheep.", "如果你喜欢这个故事，请告诉我。", "今天天气很好，我们去公园。",
        "你好，世界！", "これは小さなモデルです。", "こんにちは、せかい！ カタカナ テスト", "Привет, мир! Как дела?", "Café, naïve, Zürich, señor, façade.",
        "for (int i = 0; i < n; ++i) {\n    sum += a[i];\n}\n", "def main():\n    return None\n\n\n", "if (x == 0) {\n        break;\n    }\n",
        "#include <vector>\n#include <string>\n", "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n```json\n```",
        "https://example.com/index.html?q=1", "I'm sure you're right; they've said it's fine, don't we'll?", "😀😀 👍🏽 🎉", "...\n\n   \t  ---  ***",
    ]
    for text in extras:
        for _ in range(60):
            yield text


if __name__ == "__main__":
    rng = random.Random(1)
    for _ in range(25):
        print(repr(sample(rng)))
