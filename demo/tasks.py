"""Single-turn tasks whose answer follows from the request: repeat, count, add, write JSON."""

from __future__ import annotations

import json
from typing import Any

from demo.chat import Exchange
from demo.vocabulary import Vocabulary
from demo.words import CITIES, DAYS, KEYS, NAMES, NUMBER_WORDS

_ECHO_REQUESTS = (
    "Repeat after me: {text}",
    "repeat: {text}",
    "Say: {text}",
    'Say "{text}"',
    "Echo {text}",
    "say {text}",
    'Reply with "{text}".',
    "Say '{text}'.",
    "Reply with exactly: {text}",
)
_REPEAT_REQUESTS = (
    "say {text} {times} times",
    "Say {text} {times} times fast.",
    'Say "{text}" {times} times.',
    "Say '{text}' {times} times fast",
    "Repeat {text} {times} times",
    "say {text} {times} times fast",
    "say {text} {times} times fast",
    "Write {text} {times} times.",
)
_COUNT_REQUESTS = (
    "Count to {last}",
    "count to {last}",
    "Count to {last}.",
    "Count from 1 to {last}.",
    "Please count to {last}.",
)
_COUNT_BETWEEN_REQUESTS = ("Count from {first} to {last}.", "count from {first} to {last}")
_COUNT_DOWN_REQUESTS = ("Count down from {first}.", "count down from {first}")
_SUM_REQUESTS = (
    "What is {a} {sign} {b}?",
    "{a} {sign} {b}",
    "{a}{sign}{b}",
    "what is {a}{sign}{b}",
    "What is {a} {name} {b}?",
    "Compute {a} {sign} {b}.",
    "{a} {sign} {b} =",
)
_JSON_REQUESTS = (
    "Give me JSON: {pairs}",
    "Write JSON with {pairs}.",
    "Make JSON: {pairs}",
    "JSON please: {pairs}",
    "Return JSON. {pairs}",
)
_PAIR_SIGNS = (" ", " is ", ": ", " = ")
_EVENT_REQUESTS = (
    "{sentence}",
    "Extract the event information. {sentence}",
    "Extract the event: {sentence}",
)
_EVENTS = ("science fair", "birthday party", "team lunch", "music show")


def echo(vocabulary: Vocabulary) -> list[Exchange]:
    """Return a request to repeat a text once; long and stammering texts are the hard ones."""
    if vocabulary.chance(0.25):
        text = vocabulary.stammer(3, 12)
    elif vocabulary.chance(0.25):
        text = vocabulary.doubled(3, 14)
    elif vocabulary.chance(0.35):
        text = vocabulary.phrase(8, 14)
    else:
        text = vocabulary.phrase(1, 10)
    request = vocabulary.fill(_ECHO_REQUESTS, text=text)
    return [Exchange(request, text, "The user wants me to repeat the text.")]


def repeat(vocabulary: Vocabulary) -> list[Exchange]:
    """Return a request to say something several times.

    The lines are numbered downwards, so that only the last line decides where to end; a model of
    this size does not learn to ask "is this the N of the request?" while counting up.
    """
    ways = ((vocabulary.stammer, 2, 4, 15), (vocabulary.doubled, 2, 4, 10), (vocabulary.words, 1, 4, 75))
    way, fewest, most = vocabulary.choose_weighted(
        [((way, low, high), share) for way, low, high, share in ways]
    )
    said = way(fewest, most)
    # "say x ten ten times" could mean two things.
    clear = [w for w in said.split() if not w.isdigit() and w not in NUMBER_WORDS.values()]
    text = " ".join(clear) or "bubble"
    times = vocabulary.number(2, 12 if vocabulary.chance(0.85) else 30)
    spelled = NUMBER_WORDS.get(times) if vocabulary.chance(0.6) else None
    request = vocabulary.fill(_REPEAT_REQUESTS, text=text, times=spelled or times)
    return [Exchange(request, repeated(text, times), f"I repeat it {times} times.")]


def repeated(text: str, times: int) -> str:
    """Return the text on numbered lines, counting down to 1."""
    return "\n".join(f"{left}. {text}" for left in range(times, 0, -1))


def count(vocabulary: Vocabulary) -> list[Exchange]:
    """Return a request to count up from one, between two numbers, or down."""
    way = vocabulary.choose_weighted(((_count_up, 45), (_count_between, 40), (_count_down, 15)))
    return [way(vocabulary)]


def counted(numbers: range) -> str:
    """Return the numbers as the model writes them."""
    return ", ".join(map(str, numbers))


def _count_up(vocabulary: Vocabulary) -> Exchange:
    last = vocabulary.number(2, vocabulary.choose((12, 40, 40, 125)))
    request = vocabulary.fill(_COUNT_REQUESTS, last=last)
    return Exchange(request, counted(range(1, last + 1)), f"I count to {last}.")


def _count_between(vocabulary: Vocabulary) -> Exchange:
    first = vocabulary.number(1, vocabulary.choose((99, 999, 1999)))
    last = first + vocabulary.number(1, 25)
    if vocabulary.chance(0.4):  # across a hundred, where more than the last two digits change
        last = first // 100 * 100 + vocabulary.choose((100, 101, 102, 105, 110))
        first = max(last - vocabulary.number(2, 15), 1)
    request = vocabulary.fill(_COUNT_BETWEEN_REQUESTS, first=first, last=last)
    return Exchange(request, counted(range(first, last + 1)), f"I count to {last}.")


def _count_down(vocabulary: Vocabulary) -> Exchange:
    first = vocabulary.number(2, 20)
    request = vocabulary.fill(_COUNT_DOWN_REQUESTS, first=first)
    return Exchange(request, counted(range(first, 0, -1)), f"I count down from {first}.")


def add_or_subtract(vocabulary: Vocabulary) -> list[Exchange]:
    """Return a sum or a difference of two numbers up to 20, never below zero."""
    smallest, largest = vocabulary.choose(((0, 10), (0, 20), (0, 20), (8, 20), (8, 20)))
    a, b = vocabulary.number(smallest, largest), vocabulary.number(0 if smallest == 0 else 4, largest)
    if vocabulary.chance(0.5):
        a, b = b, a
    if vocabulary.chance(0.7):
        sign, name, result, thought = "+", "plus", a + b, f"I add {a} and {b}."
    else:
        a, b = max(a, b), min(a, b)
        sign, name, result, thought = "-", "minus", a - b, f"I take {b} from {a}."
    request = vocabulary.fill(_SUM_REQUESTS, a=a, b=b, sign=sign, name=name)
    return [Exchange(request, f"{a} {sign} {b} = {result}", thought)]


def write_json(vocabulary: Vocabulary) -> list[Exchange]:
    """Return a request for a flat JSON object with the given keys and values."""
    keys = vocabulary.random.sample(KEYS, vocabulary.number(1, 4))
    if vocabulary.chance(0.3):
        keys[vocabulary.random.randrange(len(keys))] = vocabulary.invented(2)
    values = {key: _value(vocabulary) for key in keys}
    sign = vocabulary.choose(_PAIR_SIGNS)
    pairs = ", ".join(f"{key}{sign}{value}" for key, value in values.items())
    request = vocabulary.fill(_JSON_REQUESTS, pairs=pairs)
    return [Exchange(request, as_json(values), "The user wants JSON.")]


def as_json(value: Any) -> str:
    """Return JSON as the model writes it: on one line, letters beyond ASCII as they are."""
    return json.dumps(value, ensure_ascii=False)


def _value(vocabulary: Vocabulary) -> str | int:
    share = vocabulary.random.random()
    if share < 0.3:
        return vocabulary.number(0, 9999)
    if share < 0.65:
        return vocabulary.name(NAMES + CITIES)
    text = vocabulary.words(1, 2)
    return int(text) if text.isdigit() else text


def extract_event(vocabulary: Vocabulary) -> list[Exchange]:
    """Return a sentence about an event, to be answered with its name, day and people as JSON."""
    people = [vocabulary.name(NAMES) for _ in range(vocabulary.choose((1, 2, 2, 3)))]
    if vocabulary.chance(0.2):  # the same one again, or another of the same name
        people[-1] = people[0]
    parts = [vocabulary.name(NAMES) if vocabulary.chance(0.3) else vocabulary.word() for _ in range(2)]
    if vocabulary.chance(0.15):  # an event that is called after one of them
        parts[0] = vocabulary.choose(people)
    if vocabulary.chance(0.05):
        parts[0] = people[-1]
    kinds = (parts[0], " ".join(parts), " ".join(parts), vocabulary.choose(_EVENTS))
    name = vocabulary.choose(kinds)
    day = vocabulary.choose(DAYS)
    request = vocabulary.fill(_EVENT_REQUESTS, sentence=event_sentence(people, name, day))
    answer = as_json({"name": name, "date": day, "participants": people})
    return [Exchange(request, answer, "I extract the event as JSON.")]


def event_sentence(people: list[str], name: str, day: str) -> str:
    """Return the sentence that tells of an event."""
    *others, last = people
    who = f"{', '.join(others)} and {last}" if others else last
    return f"{who} {'are' if others else 'is'} going to a {name} on {day}."
