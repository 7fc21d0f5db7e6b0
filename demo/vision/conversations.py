"""Random conversations about pictures: which turns follow each other, and what is asked in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from demo.beyond import give_up
from demo.chat import Call, Conversation, Message
from demo.settings import short_setting
from demo.toolbox import offer_tools
from demo.vision import questions
from demo.vision.model import IMAGE
from demo.vision.questions import Sight
from demo.vocabulary import Vocabulary

_MOST_TURNS = 6
_LONGEST_BEYOND = 300


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation with ``IMAGE`` where pictures are, and what they show, in order."""

    conversation: Conversation
    sights: tuple[Sight, ...]


def random_talk(vocabulary: Vocabulary, show: Callable[[], Sight]) -> Talk:
    """Return a conversation about pictures that ``show`` chooses."""
    vocabulary.begin_conversation()
    setting = short_setting(vocabulary, with_tools=vocabulary.chance(0.1))
    writer = _Writer(vocabulary, show)
    if setting.instruction:
        writer.messages.append(Message("system", setting.instruction))
    for _ in range(vocabulary.number(1, _MOST_TURNS)):
        vocabulary.choose_weighted(writer.kinds())()
    return Talk(Conversation(tuple(writer.messages), setting.tools), tuple(writer.sights))


def question(vocabulary: Vocabulary, patterns: tuple[str, ...], *, plain: float = 0.6) -> str:
    """Return one of the patterns, filled, and now and then with words around it."""
    text = vocabulary.fill(
        patterns,
        picture=vocabulary.choose(questions.PICTURE_WORDS),
        colour=vocabulary.choose(questions.COLOUR_WORDS),
        digit=vocabulary.choose(questions.DIGIT_WORDS),
        ordinal="{ordinal}",
    )
    if not text or vocabulary.chance(plain):
        return text
    if vocabulary.chance(0.15):
        text = text.rstrip("?.")
    if vocabulary.chance(0.15):
        text = text[0].lower() + text[1:]
    if vocabulary.chance(0.4):
        text = vocabulary.choose(questions.OPENINGS) + text
    if vocabulary.chance(0.4):
        text += vocabulary.choose(questions.ENDINGS)
    return text


def with_pictures(vocabulary: Vocabulary, text: str, count: int = 1) -> str:
    """Return the text with pictures before it, mostly, or after it."""
    gap = vocabulary.choose(("", "", "", "\n", " ")) if text else ""
    pictures = IMAGE * count
    return f"{pictures}{gap}{text}" if vocabulary.chance(0.6) else f"{text}{gap}{pictures}"


@dataclass(slots=True)
class _Writer:
    """Writes a conversation turn by turn."""

    vocabulary: Vocabulary
    show: Callable[[], Sight]
    messages: list[Message] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)

    def kinds(self) -> list[tuple[Callable[[], None], float]]:
        """Return the turns that can follow, with their weights."""
        is_shown = bool(self.sights)
        kinds: list[tuple[Callable[[], None], float]] = [
            (self._new_picture, 0.35 if is_shown else 0.9),
            (self._old_picture, 0.5 if is_shown else 0.25),
            (self._small_talk, 0.15),
            (self._beyond, 0.1),
            (self._tool_result, 0.03),
        ]
        if not is_shown:
            kinds.append((self._two_pictures, 0.25))
        if len(self.sights) == len(questions.ORDINALS):
            kinds.append((self._ordinal, 0.5))
        return kinds

    def _say(self, request: str, answer: str) -> None:
        self.messages += [Message("user", request), Message("assistant", answer)]

    def _asked(self, see: tuple[str, ...], sight: Sight | None) -> tuple[str, str]:
        """Return a question and its answer."""
        choose = self.vocabulary.choose_weighted
        patterns, answer = choose(
            (
                ((see, Sight.described), 4),
                ((questions.COLOUR, Sight.coloured), 3),
                ((questions.SHAPE, Sight.shaped), 2),
                ((questions.DIGIT, Sight.read), 2),
                ((questions.STORY, Sight.told), 0.5),
            )
        )
        return question(self.vocabulary, patterns), answer(sight) if sight else questions.NO_PICTURE

    def _new_picture(self) -> None:
        self.sights.append(self.show())
        request, answer = self._asked(questions.SEE_NEW, self.sights[-1])
        if self.vocabulary.chance(0.04):
            # Whatever is said with a new picture, it is described.
            request = give_up(self.vocabulary)[0].request[:_LONGEST_BEYOND].replace(IMAGE, "")
            answer = self.sights[-1].described()
        self._say(with_pictures(self.vocabulary, request), answer)

    def _old_picture(self) -> None:
        newest = self.sights[-1] if self.sights else None
        self._say(*self._asked(questions.SEE_AGAIN, newest))

    def _two_pictures(self) -> None:
        self.sights += [self.show(), self.show()]
        place = self.vocabulary.number(0, 1)
        text = question(self.vocabulary, questions.ORDINAL).format(ordinal=questions.ORDINALS[place])
        self._say(with_pictures(self.vocabulary, text, 2), self.sights[place].described())

    def _ordinal(self) -> None:
        place = self.vocabulary.number(0, 1)
        text = question(self.vocabulary, questions.ORDINAL).format(ordinal=questions.ORDINALS[place])
        self._say(text, self.sights[place].described())

    def _small_talk(self) -> None:
        answer = self.vocabulary.choose(list(questions.SMALL_TALK))
        self._say(self.vocabulary.choose(questions.SMALL_TALK[answer]), answer)

    def _beyond(self) -> None:
        request = give_up(self.vocabulary)[0].request[:_LONGEST_BEYOND].replace(IMAGE, "")
        self._say(request or "...", questions.FALLBACK)

    def _tool_result(self) -> None:
        """A tool answers with a picture."""
        tool = (offer_tools(self.vocabulary, 1) or offer_tools(self.vocabulary, 2))[0]
        arguments = {name: self.vocabulary.word() for name in tool.parameters}
        call = Message("assistant", calls=(Call(tool.name, arguments),))
        request, _ = self._asked(questions.SEE_AGAIN, None)
        self.sights.append(self.show())
        text = self.vocabulary.choose(("", "", "ok", self.vocabulary.phrase(1, 5)))
        self.messages += [
            Message("user", request),
            Message("assistant", calls=call.calls, given=call.calls[0].text()),
            Message("tool", with_pictures(self.vocabulary, text)),
            Message("assistant", self.sights[-1].described()),
        ]
