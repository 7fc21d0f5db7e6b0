"""The mix: what follows what in a conversation, and how often.

Three moods: a conversation about tools, one full of facts to remember, or one of everything. A
system message may give the model a persona or the speech of a pirate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType

from demo import small_talk, tasks
from demo.chat import Conversation, Exchange, Message, Tool
from demo.facts import Fact, random_fact
from demo.tools import offer_tools, tool_turns
from demo.vocabulary import Vocabulary
from demo.words import NAMES

Task = Callable[[Vocabulary], list[Exchange]]

#: How often each single-turn task is drawn, by weight.
TASKS: tuple[tuple[Task, float], ...] = (
    (small_talk.greet, 3),
    (small_talk.describe_self, 3),
    (small_talk.thank, 1),
    (small_talk.part, 0.5),
    (small_talk.recite, 7),
    (small_talk.give_up, 6),
    (small_talk.knock, 2),
    (tasks.echo, 20),
    (tasks.repeat, 11),
    (tasks.count, 12),
    (tasks.add_or_subtract, 24),
    (tasks.write_json, 9),
    (tasks.extract_event, 6),
)

#: What a pirate is asked; canned texts twice as often as the rest.
_PIRATE_TASKS: tuple[Task, ...] = (
    small_talk.greet,
    small_talk.describe_self,
    small_talk.recite,
    small_talk.recite,
    small_talk.give_up,
    tasks.add_or_subtract,
)
_PIRATE_INSTRUCTIONS = (
    "Talk like a pirate.",
    "You are a coding assistant that talks like a pirate.",
    "Speak like a pirate.",
)
_INSTRUCTIONS = (
    "You are a helpful assistant.",
    "You are helpful.",
    "Be brief.",
    "Extract the event information.",
    "Answer in one sentence.",
    "You are a coding assistant.",
)
_PERSONA_INSTRUCTIONS = (
    "You are {persona}.",
    "Your name is {persona}.",
    "You are called {persona}.",
)
_PERSONA_QUESTIONS = (
    "Who are you?",
    "What is your name?",
    "who are you",
    "what is your name?",
)

#: The draws of a conversation: one to six, short ones more often.
_LENGTHS = (1, 1, 2, 3, 4, 5, 6)


class Mood(Enum):
    """What a conversation is mostly about."""

    TOOLS = "tools"
    EVERYTHING = "everything"
    FACTS = "facts"


#: Up to which share of its draws, if nothing earlier took them, a mood tells a new fact.
_TELLING_SHARE = {Mood.TOOLS: 0.0, Mood.EVERYTHING: 0.3, Mood.FACTS: 0.62}


def random_conversation(
    vocabulary: Vocabulary, emphasis: Mapping[Task, float] = MappingProxyType({})
) -> Conversation:
    """Return a conversation in which the assistant speaks at least once.

    ``emphasis`` says how many times as often as usual a single-turn task is drawn.
    """
    tasks = [(task, weight * emphasis.get(task, 1)) for task, weight in TASKS]
    while True:
        conversation = _Writer(vocabulary, tasks).write()
        if any(message.role == "assistant" for message in conversation.messages):
            return conversation


class _Writer:
    """One conversation while it is written: what was told so far decides what can be asked."""

    def __init__(self, vocabulary: Vocabulary, tasks: Sequence[tuple[Task, float]]) -> None:
        self._vocabulary = vocabulary
        self._tasks = tasks
        vocabulary.begin_conversation()
        self._mood = vocabulary.choose_weighted(((Mood.TOOLS, 27), (Mood.EVERYTHING, 23), (Mood.FACTS, 50)))
        self._tools: tuple[Tool, ...] = ()
        if self._mood is Mood.TOOLS:
            self._tools = offer_tools(vocabulary)
        self._facts: dict[str, Fact] = {}
        self._persona = ""
        self._is_pirate = False
        self._messages: list[Message] = []

    def write(self) -> Conversation:
        """Draw the system message, then turn by turn."""
        self._instruct()
        for drawn in range(self._vocabulary.choose(_LENGTHS)):
            self._messages += self._next_turns(is_late=drawn > 3)
        return Conversation(tuple(self._messages), self._tools)

    def _instruct(self) -> None:
        vocabulary, text = self._vocabulary, ""
        if vocabulary.chance(0.15):
            text = vocabulary.choose((*_INSTRUCTIONS, vocabulary.phrase(3, 8)))
        if vocabulary.chance(0.1):
            self._persona = vocabulary.name(NAMES)
            text = vocabulary.fill(_PERSONA_INSTRUCTIONS, persona=self._persona)
        if not text and not self._tools and vocabulary.chance(0.05):
            self._is_pirate = True
            text = vocabulary.choose(_PIRATE_INSTRUCTIONS)
        if text:
            self._messages.append(Message("system", text))

    def _next_turns(self, *, is_late: bool) -> list[Message]:
        """Return the turns of one draw; none where a fact was already told."""
        if self._is_pirate:
            return [*self._ask_pirate().messages()]
        share = self._vocabulary.random.random()
        if self._tools and share < 0.6:
            return tool_turns(self._vocabulary, self._tools)
        if self._persona and share < 0.5:
            return [*self._ask_persona().messages()]
        if self._facts and share < 0.45:
            return [*self._vocabulary.choose([*self._facts.values()]).asked().messages()]
        if share < 0.65:
            return self._about_a_fact(is_told=share < _TELLING_SHARE[self._mood])
        return self._perform(is_late=is_late)

    def _about_a_fact(self, *, is_told: bool) -> list[Message]:
        fact = random_fact(self._vocabulary)
        if fact.subject in self._facts:
            return []
        if not is_told:
            return [*fact.asked_untold().messages()]
        self._facts[fact.subject] = fact
        return [*fact.told().messages()]

    def _perform(self, *, is_late: bool) -> list[Message]:
        exchanges = self._vocabulary.choose_weighted(self._tasks)(self._vocabulary)
        if is_late and len(exchanges) > 1:
            return []
        return [message for exchange in exchanges for message in exchange.messages()]

    def _ask_persona(self) -> Exchange:
        question = self._vocabulary.choose(_PERSONA_QUESTIONS)
        return Exchange(question, f"I am {self._persona}.", "My name is in the instructions.")

    def _ask_pirate(self) -> Exchange:
        plain = self._vocabulary.choose(_PIRATE_TASKS)(self._vocabulary)[0]
        answer = f"Arr, {plain.answer[0].lower()}{plain.answer[1:]}"
        return Exchange(plain.request, answer, "I talk like a pirate.")
