"""The events of a reasoning item's summary, which repeats the reasoning while it is streamed. Pure.

Part of the event emitter, whose sequence numbers it shares. Order: part added, text deltas, text done,
part done. Deltas are whole words, cut by the text alone and not by how it arrived. So a resumed run
continues exactly where its log ends.
"""

import re
from collections.abc import Callable

from server.protocol.responses import events as wire
from server.protocol.responses.events import Event
from server.protocol.responses.items import SummaryText

_WORDS = re.compile(r"(?:\S{0,31}\s|\S{32})*+")
"""Whole words, and pieces of 32 characters of long ones, for languages without spaces."""


class ReasoningSummary:
    """The summary of the open reasoning item."""

    def __init__(self, item_id: str, output_index: int, new_seq: Callable[[], int]) -> None:
        self._part = (item_id, output_index, 0)
        self._new_seq = new_seq
        self._partial_word = ""

    def begin(self) -> list[Event]:
        return [
            wire.whole_event(wire.ReasoningSummaryPartAdded(self._new_seq(), *self._part, SummaryText("")))
        ]

    def append(self, text: str) -> list[Event]:
        """A delta of the words that this text completes."""
        text = self._partial_word + text
        words = _WORDS.match(text)
        end = words.end() if words else 0
        self._partial_word = text[end:]
        return self._deltas(text[:end])

    def end(self, text: str) -> list[Event]:
        """The last delta and the done events; `text` is the whole reasoning."""
        return [
            *self._deltas(self._partial_word),
            wire.whole_event(wire.ReasoningSummaryTextDone(self._new_seq(), *self._part, text)),
            wire.whole_event(wire.ReasoningSummaryPartDone(self._new_seq(), *self._part, SummaryText(text))),
        ]

    def _deltas(self, text: str) -> list[Event]:
        if not text:
            return []
        return [wire.whole_event(wire.ReasoningSummaryTextDelta(self._new_seq(), *self._part, text))]
