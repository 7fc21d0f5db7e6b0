"""Splits decoded text into reasoning and answer at `<think>` and `</think>`.

Sans-IO and linear: a tag may arrive in any number of pieces; only what could still become a tag is held back.
"""

from server.dialects.base import Delta, ReasoningDelta, TextDelta

OPEN, CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Reasoning comes at most once, before the answer. White space around the tags belongs to neither."""

    def __init__(self, *, opens_reasoning: bool) -> None:
        self._phase = "reasoning" if opens_reasoning else "start"
        self._held = ""
        self._begun = False
        """The present phase has given visible text, so white space at its head is over."""

    @property
    def reasoning(self) -> bool:
        """The next text belongs to the reasoning, as far as is known."""
        return self._phase == "reasoning"

    def feed(self, text: str) -> list[Delta]:
        self._held += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def close(self) -> list[Delta]:
        deltas: list[Delta] = []
        if self._phase == "start":
            self._phase = "answer"
            self._begun = True  # white space is all the answer there is
        if self._phase == "reasoning":
            self._held = self._held.rstrip()
        self._give(deltas, self._held)
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
                self._give(deltas, self._held)
                self._held = ""
                return False

    def _decide_start(self) -> bool:
        visible = self._held.lstrip()
        if visible.startswith(OPEN):
            self._held = visible[len(OPEN) :]
            self._phase = "reasoning"
            return True
        if OPEN.startswith(visible):
            return False
        self._phase = "answer"
        self._begun = True  # no reasoning came: its white space is the model's own
        return True

    def _read_reasoning(self, deltas: list[Delta]) -> bool:
        before, tag, after = self._held.partition(CLOSE)
        if tag:
            self._give(deltas, before.rstrip())
            self._held, self._phase, self._begun = after, "answer", False
            return True
        kept = _certain(self._held)
        self._give(deltas, self._held[:kept])
        self._held = self._held[kept:] if self._begun else self._held[kept:].lstrip()
        return False

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
