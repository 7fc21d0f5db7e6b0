"""The events of a reasoning item's summary, which is the reasoning itself, told as it comes.

Pure; a part of the emitter, whose numbers it shares. Order: part added, text deltas, text done, part done.
Its deltas are whole words, cut by the text alone: however the text came, what was told of it is the same, so
that a run which is resumed goes on where its log ends.
"""

import re
from collections.abc import Callable

from server.protocol.responses import events as wire
from server.protocol.responses.events import Event
from server.protocol.responses.items import SummaryText

_WORDS = re.compile(r"(?:\S{0,31}\s|\S{32})*+")
"""Whole words, and pieces of long ones, of languages without spaces."""


class Summary:
    """That of the reasoning item which is open."""

    def __init__(self, item_id: str, output_index: int, number: Callable[[], int]) -> None:
        self._place = (item_id, output_index, 0)
        self._number = number
        self._rest = ""
        """The beginning of a word that is not told yet."""

    def begin(self) -> list[Event]:
        """What is told before its first word."""
        return [
            wire.whole_event(wire.ReasoningSummaryPartAdded(self._number(), *self._place, SummaryText("")))
        ]

    def more(self, text: str) -> list[Event]:
        """The words that are complete with this text."""
        text = self._rest + text
        found = _WORDS.match(text)
        end = found.end() if found else 0
        self._rest = text[end:]
        return self._deltas(text[:end])

    def end(self, text: str) -> list[Event]:
        """What is left, and that this is the whole text."""
        return [
            *self._deltas(self._rest),
            wire.whole_event(wire.ReasoningSummaryTextDone(self._number(), *self._place, text)),
            wire.whole_event(wire.ReasoningSummaryPartDone(self._number(), *self._place, SummaryText(text))),
        ]

    def _deltas(self, text: str) -> list[Event]:
        if not text:
            return []
        return [wire.whole_event(wire.ReasoningSummaryTextDelta(self._number(), *self._place, text))]
