"""Splits decoded text into reasoning and answer at `<think>` and `</think>`.

Sans-IO and linear: a tag may arrive in any number of pieces; only what could still become a tag is held back.
"""

from server.dialects.base import Delta, ReasoningDelta, TextDelta

OPEN, CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Reasoning comes at most once, before the answer. White space around the tags belongs to neither.

    A model may repeat the tag with which its prompt opened the reasoning.
    """

    def __init__(self, *, opens_reasoning: bool) -> None:
        self._opened = opens_reasoning
        self._phase = "start"
        self._space: list[str] = []
        """White space before the held text, of which it is not known yet to whom it belongs."""
        self._held = ""
        self._begun = False
        """The present phase has given visible text, so white space at its head is over."""

    @property
    def reasoning(self) -> bool:
        """The next text belongs to the reasoning, as far as is known."""
        return self._phase == "reasoning" or (self._phase == "start" and self._opened)

    def feed(self, text: str) -> list[Delta]:
        self._held += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def close(self) -> list[Delta]:
        deltas: list[Delta] = []
        if self._phase == "start":
            self._begin_without_tag()
        rest = self._with_space(self._held)
        self._give(deltas, rest.rstrip() if self._phase == "reasoning" else rest)
        self._held = ""
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        """Takes one decision from the held text; False when it needs more."""
        match self._phase:
            case "start":
                return self._decide_start()
            case "reasoning":
                return self._read_reasoning(deltas)
            case _:
                self._give(deltas, self._with_space(self._held))
                self._held = ""
                return False

    def _decide_start(self) -> bool:
        self._set_space_aside()
        if self._held.startswith(OPEN):
            self._held = self._held[len(OPEN) :]
            self._space = []
            self._phase = "reasoning"
            return True
        if OPEN.startswith(self._held):
            return False
        self._begin_without_tag()
        return True

    def _begin_without_tag(self) -> None:
        self._phase = "reasoning" if self._opened else "answer"
        self._begun = not self._opened  # if no reasoning came, its white space is the model's own

    def _read_reasoning(self, deltas: list[Delta]) -> bool:
        before, tag, after = self._held.partition(CLOSE)
        if tag:
            self._give(deltas, self._with_space(before).rstrip())
            self._held, self._phase, self._begun = after, "answer", False
            return True
        if kept := _certain(self._held):
            self._give(deltas, self._with_space(self._held[:kept]))
            self._held = self._held[kept:]
        self._set_space_aside()
        return False

    def _set_space_aside(self) -> None:
        """Apart from the held text, which then never gets longer than a tag: long space costs no more."""
        visible = self._held.lstrip()
        self._space.append(self._held[: len(self._held) - len(visible)])
        self._held = visible

    def _with_space(self, text: str) -> str:
        whole = "".join(self._space) + text
        self._space = []
        return whole

    def _give(self, deltas: list[Delta], text: str) -> None:
        if not self._begun:
            text = text.lstrip()
        if text:
            self._begun = True
            deltas.append(ReasoningDelta(text) if self._phase == "reasoning" else TextDelta(text))


def _certain(text: str) -> int:
    """How many leading characters can be neither part of the closing tag nor white space before it."""
    end = len(text)
    for size in range(min(len(CLOSE) - 1, end), 0, -1):
        if text.endswith(CLOSE[:size]):
            end -= size
            break
    return len(text[:end].rstrip())
