"""The mix: what follows what in a conversation, and how often.

Three moods: a conversation about tools, one full of facts to remember, or one of everything. What
stands before it, ``settings.py`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType

from demo import beyond, small_talk, tasks
from demo.chat import Conversation, Exchange, Message, Role
from demo.facts import Fact, random_fact
from demo.prompts import long_prompt
from demo.settings import Setting, short_setting
from demo.toolbox import base_name, offer_tools
from demo.tools import marked_result_turns, tool_turns, unoffered_turns
from demo.vocabulary import Vocabulary

Task = Callable[[Vocabulary], list[Exchange]]
#: How many times as often as usual something is drawn: a task, a tool that is not offered
#: (``unoffered_turns``), a well-known tool among those on offer (``offer_tools``), conversations about
#: tools (``tool_turns``), a fact that is asked for much later (``random_fact``), drills (``drill``,
#: a share from 0 to 1).
Emphasis = Mapping[Callable[..., object], float]

#: How often each single-turn task is drawn, by weight.
TASKS: tuple[tuple[Task, float], ...] = (
    (small_talk.greet, 3),
    (small_talk.describe_self, 3),
    (small_talk.thank, 1),
    (small_talk.part, 0.5),
    (small_talk.recite, 7),
    (beyond.give_up, 16),
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
    beyond.give_up,
    tasks.add_or_subtract,
)
_PERSONA_QUESTIONS = (
    "Who are you?",
    "What is your name?",
    "who are you",
    "what is your name?",
)

#: The draws of a conversation: one to six, short ones more often.
_LENGTHS = (1, 1, 2, 3, 4, 5, 6)
_LENGTHS_WITH_SETTING = (1, 1, 1, 2, 3)


class Mood(Enum):
    """What a conversation is mostly about."""

    TOOLS = "tools"
    EVERYTHING = "everything"
    FACTS = "facts"


#: How often a tool is asked for that is not offered, besides when tools are talked about.
_UNOFFERED_SHARE = 0.03
#: How often a result is mostly marks, where that is emphasised; else it is not.
_MARKED_SHARE = 0.03
#: How often a fact is asked for after pages of talk, where facts are emphasised; else it is not.
_FAR_SHARE = 0.004
#: How often something beyond the model is asked where there are tools, besides when it is drawn.
_BEYOND_SHARE = 0.08
#: Up to which share of its draws, if nothing earlier took them, a mood tells a new fact.
_TELLING_SHARE = {Mood.TOOLS: 0.0, Mood.EVERYTHING: 0.3, Mood.FACTS: 0.62}


def random_conversation(
    vocabulary: Vocabulary,
    emphasis: Emphasis = MappingProxyType({}),
    setting: Setting | None = None,
) -> Conversation:
    """Return a conversation in which the assistant speaks at least once.

    Without a setting a short one is drawn.
    """
    while True:
        conversation = _Writer(vocabulary, emphasis, setting).write()
        if any(message.role == "assistant" for message in conversation.messages):
            return conversation


class _Writer:
    """One conversation while it is written: what was told so far decides what can be asked."""

    def __init__(self, vocabulary: Vocabulary, emphasis: Emphasis, setting: Setting | None) -> None:
        self._vocabulary = vocabulary
        self._tasks = [(task, weight * emphasis.get(task, 1)) for task, weight in TASKS]
        self._marked_share = _MARKED_SHARE * emphasis.get(marked_result_turns, 0)
        self._unoffered_share = _UNOFFERED_SHARE * emphasis.get(unoffered_turns, 1)
        self._lengths = _LENGTHS if setting is None else _LENGTHS_WITH_SETTING
        vocabulary.begin_conversation()
        tools_weight = 27 * emphasis.get(tool_turns, 1)
        moods = ((Mood.TOOLS, tools_weight), (Mood.EVERYTHING, 33), (Mood.FACTS, 35))
        self._mood = vocabulary.choose_weighted(moods)
        self._far_share = _FAR_SHARE * emphasis.get(random_fact, 0)
        if setting is not None and setting.tools:
            self._mood = vocabulary.choose((Mood.TOOLS, Mood.TOOLS, Mood.EVERYTHING, Mood.FACTS))
        self._setting = setting or short_setting(
            vocabulary,
            with_tools=self._mood is Mood.TOOLS,
            known_tools=emphasis.get(offer_tools, 1),
        )
        self._tools = self._setting.tools
        self._can_add = any(base_name(tool) == "add" for tool in self._tools)
        self._facts: dict[str, Fact] = {}
        self._messages: list[Message] = []

    def write(self) -> Conversation:
        """Draw the system message, then turn by turn."""
        if self._setting.instruction:
            self._messages.append(Message("system", self._setting.instruction))
        if self._vocabulary.chance(0.03):
            self._messages += self._unanswered()
        if self._vocabulary.chance(self._far_share):
            self._messages += self._far_facts()
        for drawn in range(self._vocabulary.choose(self._lengths)):
            self._messages += self._next_turns(is_late=drawn > 3)
        return Conversation(tuple(self._messages), self._tools)

    def _unanswered(self) -> list[Message]:
        """Return what agents send before the first request: notes on the project, the environment."""
        vocabulary = self._vocabulary
        # A system message at the start would be the setting's.
        role: Role = "system" if self._messages and vocabulary.chance(0.3) else "user"
        count = vocabulary.number(1, 2)
        texts = [long_prompt(vocabulary, vocabulary.choose((60, 150, 300))) for _ in range(count)]
        return [Message(role, text) for text in texts]

    def _far_facts(self) -> list[Message]:
        """Return a fact, much talk between, and a question for it."""
        vocabulary = self._vocabulary
        fact = random_fact(vocabulary)
        self._facts[fact.subject] = fact
        messages = [*fact.told().messages()]
        for _ in range(vocabulary.choose((2, 4, 8, 12))):
            between = vocabulary.choose((tasks.count, tasks.count, small_talk.recite, beyond.give_up))
            messages += [m for exchange in between(vocabulary) for m in exchange.messages()]
        return [*messages, *fact.asked().messages()]

    def _next_turns(self, *, is_late: bool) -> list[Message]:
        """Return the turns of one draw; none where a fact was already told."""
        if self._setting.is_pirate:
            return [*self._ask_pirate().messages()]
        if self._vocabulary.chance(self._unoffered_share):
            return unoffered_turns(self._vocabulary, self._tools)
        if self._marked_share and self._tools and self._vocabulary.chance(self._marked_share):
            return marked_result_turns(self._vocabulary, self._tools)
        if self._tools and self._vocabulary.chance(_BEYOND_SHARE):
            return [m for exchange in beyond.give_up(self._vocabulary) for m in exchange.messages()]
        share = self._vocabulary.random.random()
        if self._tools and self._mood is Mood.TOOLS and share < 0.6:
            return tool_turns(self._vocabulary, self._tools)
        if self._setting.persona and share < 0.4:
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
        if self._setting.persona and exchanges[0].request in _PERSONA_QUESTIONS:
            return [*self._ask_persona().messages()]
        if self._can_add and exchanges[0].answer == small_talk.FALLBACK and "+" in exchanges[0].request:
            return []
        return [message for exchange in exchanges for message in exchange.messages()]

    def _ask_persona(self) -> Exchange:
        question = self._vocabulary.choose(_PERSONA_QUESTIONS)
        return Exchange(question, f"I am {self._setting.persona}.", "My name is in the instructions.")

    def _ask_pirate(self) -> Exchange:
        plain = self._vocabulary.choose(_PIRATE_TASKS)(self._vocabulary)[0]
        answer = f"Arr, {plain.answer[0].lower()}{plain.answer[1:]}"
        return Exchange(plain.request, answer, "I talk like a pirate.")
