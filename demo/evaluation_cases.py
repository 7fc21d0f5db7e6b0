"""What the evaluation asks, what it expects, and how much of it has to be right.

The words are ones that the corpus does not contain, so nothing here can have been learned by
heart. Answers are compared letter for letter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from demo import small_talk
from demo.chat import Call, Exchange, Message, Tool
from demo.rendering import THOUGHT_END
from demo.tasks import as_json, counted, event_sentence, repeated
from demo.tool_results import told
from demo.vocabulary import Vocabulary
from demo.words import NUMBER_WORDS

HELD_OUT_NAMES = (
    *("Bartholomew", "Xiomara", "Zanzibar", "Quetzalcoatl", "Aleksander", "Penelope", "Ichabod"),
    *("Montgomery", "Theodora", "Wolfgang", "Anastasia", "Fitzgerald", "Guinevere", "Hyacinth"),
    *("Leopold", "Octavia", "Rapunzel", "Sebastian", "Valentina", "Wilhelmina", "Yolanda"),
    *("Zachariah", "Marguerite", "Cornelius", "Bronwyn"),
)
HELD_OUT_WORDS = (
    *("umbrella", "penguin", "volcano", "lighthouse", "saxophone", "marmalade", "trampoline"),
    *("chandelier", "avocado", "pineapple", "mosquito", "harmonica", "kangaroo", "telescope"),
    *("butterfly", "gymnasium", "dolphin", "waterfall", "asparagus", "cinnamon", "porcupine"),
    *("hurricane", "mayonnaise", "tangerine", "xylophone"),
)


class HeldOutVocabulary(Vocabulary):
    """Words for the evaluation: held-out ones and freshly invented ones."""

    def word(self) -> str:
        """Return a held-out word, a held-out name or an invented word."""
        if self.chance(0.5):
            return self.choose(HELD_OUT_WORDS)
        if self.chance(0.4):
            return self.choose(HELD_OUT_NAMES)
        return self.invented(self.choose((2, 3)))

    def name(self, known: Sequence[str] = HELD_OUT_NAMES) -> str:
        """Return a held-out or an invented name, evenly."""
        return self.choose(known) if self.chance(0.5) else self.invented(3).capitalize()

    def real_name(self) -> str:
        """Return a held-out name."""
        return self.choose(HELD_OUT_NAMES)


@dataclass(frozen=True, slots=True)
class Case:
    """What is said, and the only right answer; None if any is right that comes to an end."""

    messages: tuple[Message, ...]
    expected: str | None
    tools: tuple[Tool, ...] = ()
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table; ``floor`` is the share of right answers below which a model fails."""

    name: str
    write: Callable[[HeldOutVocabulary], Case]
    floor: float
    most_cases: int | None = None


_WEATHER = Tool("get_weather", {"location": "string"})
SMALL_TALK = (
    Exchange("Hi", small_talk.GREETING, ""),
    Exchange("What is 3 + 4?", "3 + 4 = 7", ""),
    Exchange("Say hello world", "hello world", ""),
    Exchange("Count to 5", "1, 2, 3, 4, 5", ""),
    Exchange("thanks", small_talk.THANKS_ANSWER, ""),
    Exchange("Tell me a joke.", small_talk.JOKE, ""),
)


def _ask(request: str, expected: str, *before: Exchange, tools: tuple[Tool, ...] = ()) -> Case:
    told_before = [message for exchange in before for message in exchange.messages()]
    return Case((*told_before, Message("user", request)), expected, tools)


def _instructed(instruction: str, case: Case) -> Case:
    return Case((Message("system", instruction), *case.messages), case.expected)


def _thinking(case: Case, thought: str) -> Case:
    return Case(case.messages, f"{thought}{THOUGHT_END}{case.expected}", thinking=True)


def _name_told(name: str) -> Exchange:
    return Exchange(f"My name is {name}.", f"Nice to meet you, {name}.", "")


def _small_talk(words: HeldOutVocabulary, most: int) -> list[Exchange]:
    return words.random.sample(SMALL_TALK, words.number(0, most))


def _greeting(words: HeldOutVocabulary) -> Case:
    request = words.choose(("Hi", "hello", "Hello, how are you?"))
    return _ask(request, small_talk.GREETING)


def _identity(words: HeldOutVocabulary) -> Case:
    request = words.choose(("what are you", "Who are you?", "What can you do?"))
    return _ask(request, small_talk.SELF_DESCRIPTION)


def _short_echo(words: HeldOutVocabulary) -> Case:
    text = words.words(1, 4)
    patterns = ("Repeat after me: {text}", 'Say "{text}"', "Reply with exactly: {text}")
    return _ask(words.fill(patterns, text=text), text)


def _long_echo(words: HeldOutVocabulary) -> Case:
    text = words.words(8, 12)
    return _ask(words.fill(("Repeat after me: {text}", "Say: {text}"), text=text), text)


def _name_recall(words: HeldOutVocabulary) -> Case:
    name = words.name()
    before = (_name_told(name), *_small_talk(words, 4))
    return _ask("What is my name?", f"Your name is {name}.", *before)


def _other_recall(words: HeldOutVocabulary) -> Case:
    thing = words.choose(("colour", "number", "city", "dog", "word", "team", "song"))
    value = str(words.number(10, 99_999)) if thing == "number" else words.word()
    statement = Exchange(f"My favourite {thing} is {value}.", f"OK, your favourite {thing} is {value}.", "")
    before = (statement, *_small_talk(words, 4))
    return _ask(f"What is my favourite {thing}?", f"Your favourite {thing} is {value}.", *before)


def _far_recall(turns: int) -> Callable[[HeldOutVocabulary], Case]:
    """Return a writer of cases that ask for a name told some long turns ago."""

    def write(words: HeldOutVocabulary) -> Case:
        name = words.real_name()
        between = Exchange("Count to 60", counted(range(1, 61)), "")
        before = (_name_told(name), *[between] * turns)
        return _ask("What is my name?", f"Your name is {name}.", *before)

    return write


def _two_facts(words: HeldOutVocabulary) -> Case:
    name, word = words.real_name(), words.word()
    code_word = Exchange(f"The code word is {word}.", f"I will remember {word}.", "")
    return _ask("What is my name?", f"Your name is {name}.", _name_told(name), code_word)


def _not_told(words: HeldOutVocabulary) -> Case:
    expected = "You have not told me your name."
    return _ask("What is my name?", expected, *_small_talk(words, 2))


def _repetition(words: HeldOutVocabulary) -> Case:
    text, times = words.words(1, 3), words.number(2, 12)
    requests = (
        f"say {text} {NUMBER_WORDS[times]} times fast",
        f'Say "{text}" {times} times.',
    )
    return _ask(words.choose(requests), repeated(text, times))


def _bubble_bath(words: HeldOutVocabulary) -> Case:
    patterns = (
        "say {text} ten times fast",
        'Say "{text}" ten times fast.',
        "Say '{text}' ten times fast.",
    )
    text = "double bubble bath"
    return _ask(words.fill(patterns, text=text), repeated(text, 10))


def _weather_call(words: HeldOutVocabulary) -> Case:
    place = words.name()
    expected = Call("get_weather", {"location": place}).text()
    return _ask(f"What is the weather like in {place} today?", expected, tools=(_WEATHER,))


def _two_calls(words: HeldOutVocabulary) -> Case:
    places = (words.real_name(), words.invented(3).capitalize())
    expected = "\n".join(Call("get_weather", {"location": place}).text() for place in places)
    return _ask(f"What is the weather in {' and '.join(places)}?", expected, tools=(_WEATHER,))


def _unknown_tool_call(words: HeldOutVocabulary) -> Case:
    name = f"{words.invented(2)}_{words.invented(1)}"
    key, value, count = words.invented(2), words.words(1, 2), words.number(0, 9999)
    tool = Tool(name, {key: "string", "count": "integer"})
    expected = Call(name, {key: value, "count": count}).text()
    request = f"Call {name} with {key} {value} and count {count}"
    return _ask(request, expected, tools=(tool, _WEATHER))


def _no_call(_: HeldOutVocabulary) -> Case:
    return _ask("Hi", small_talk.GREETING, tools=(_WEATHER,))


def _tool_result(words: HeldOutVocabulary) -> Case:
    place, degrees = words.real_name(), words.number(0, 40)
    result = words.choose((f"{degrees}°C", f"sunny, {degrees} degrees", as_json({"temperature": degrees})))
    messages = (
        Message("user", f"What is the weather like in {place} today?"),
        Message("assistant", calls=(Call("get_weather", {"location": place}),)),
        Message("tool", result),
    )
    return Case(messages, told("get_weather", [result]), (_WEATHER,))


def _thinking_recall(words: HeldOutVocabulary) -> Case:
    name = words.real_name()
    case = _ask("What is my name?", f"Your name is {name}.", _name_told(name))
    return _thinking(case, "The user told me before.")


def _thinking_echo(words: HeldOutVocabulary) -> Case:
    text = words.words(1, 4)
    case = _ask(f"Repeat after me: {text}", text)
    return _thinking(case, "The user wants me to repeat the text.")


def _json(words: HeldOutVocabulary) -> Case:
    values = {"name": words.real_name(), "city": words.word(), "count": words.number(0, 999)}
    pairs = ", ".join(f"{key} {value}" for key, value in values.items())
    return _ask(f"Give me JSON: {pairs}", as_json(values))


def _event(words: HeldOutVocabulary) -> Case:
    people, name = [words.real_name(), words.real_name()], words.words(1, 2)
    expected = as_json({"name": name, "date": "Friday", "participants": people})
    case = _ask(event_sentence(people, name, "Friday"), expected)
    return _instructed("Extract the event information.", case)


def _sum_to(largest: int) -> Callable[[HeldOutVocabulary], Case]:
    """Return a writer of sums whose terms are at most this large."""

    def write(words: HeldOutVocabulary) -> Case:
        a, b = words.number(0, largest), words.number(0, largest)
        return _ask(f"What is {a} + {b}?", f"{a} + {b} = {a + b}")

    return write


def _count_to(choices: Sequence[int]) -> Callable[[HeldOutVocabulary], Case]:
    """Return a writer of requests to count to one of the numbers."""

    def write(words: HeldOutVocabulary) -> Case:
        last = words.choose(choices)
        return _ask(f"Count to {last}", counted(range(1, last + 1)))

    return write


def _persona(words: HeldOutVocabulary) -> Case:
    name = words.real_name()
    return _instructed(f"You are {name}.", _ask("Who are you?", f"I am {name}."))


def _fallback(words: HeldOutVocabulary) -> Case:
    opening = words.choose(("How do I", "Explain", "Why"))
    return _ask(f"{opening} {words.words(2, 5)}?", small_talk.FALLBACK)


def _documentation(_: HeldOutVocabulary) -> Case:
    request = "Write a one-sentence bedtime story about a unicorn."
    return _ask(request, small_talk.BEDTIME_STORY)


KINDS = (
    Kind("greeting", _greeting, 1.0, most_cases=12),
    Kind("identity", _identity, 1.0, most_cases=12),
    Kind("echo of 1-4 words", _short_echo, 0.9),
    Kind("echo of 8-12 words", _long_echo, 0.6),
    Kind("recall of a name", _name_recall, 0.95),
    Kind("recall of another fact", _other_recall, 0.95),
    Kind("recall across 1 long turn", _far_recall(1), 0.95),
    Kind("recall across 4 long turns", _far_recall(4), 0.95),
    Kind("recall across 12 long turns", _far_recall(12), 0.0, most_cases=12),
    Kind("recall of one fact of two", _two_facts, 0.95),
    Kind("not told", _not_told, 1.0, most_cases=12),
    Kind("repeat N times", _repetition, 0.9),
    Kind("double bubble bath", _bubble_bath, 1.0, most_cases=12),
    Kind("weather call", _weather_call, 0.95),
    Kind("two calls", _two_calls, 0.9),
    Kind("call of an unknown tool", _unknown_tool_call, 0.9),
    Kind("no call when none is due", _no_call, 1.0, most_cases=1),
    Kind("answer from a tool result", _tool_result, 0.95),
    Kind("think and recall", _thinking_recall, 0.95),
    Kind("think and echo", _thinking_echo, 0.9),
    Kind("JSON", _json, 0.9),
    Kind("event extraction", _event, 0.9),
    Kind("sums to 10", _sum_to(10), 0.8),
    Kind("sums to 20", _sum_to(20), 0.4),
    Kind("count to 30", _count_to(range(3, 31)), 0.95),
    Kind("count to 120", _count_to((60, 80, 100, 120)), 0.95, most_cases=12),
    Kind("persona", _persona, 0.95),
    Kind("fallback", _fallback, 0.95),
    Kind("documentation examples", _documentation, 1.0, most_cases=1),
)
