"""What a parser may say, in any order, and OpenAI's order of events, held against what is told of it."""

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from server.model_formats.model_format import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    MessageStart,
    ReasoningDelta,
    TextDelta,
)
from server.protocol.responses.events import TERMINAL, Event, event_type

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
_starts = st.builds(
    CallStart,
    st.sampled_from(["look", "speak"]),
    st.none() | texts,
    st.sampled_from(["function", "custom"]),
    st.none() | st.just("all"),
)
_call: st.SearchStrategy[list[Delta]] = st.builds(
    lambda start, said, end: [start, *said, *end],
    _starts,
    st.lists(st.builds(CallDelta, texts), max_size=3),
    st.sampled_from([[CallEnd()], []]),
)
_phases = st.sampled_from([None, "commentary", "final_answer"])
_message: st.SearchStrategy[list[Delta]] = st.builds(
    lambda start, said: [*start, *said],
    st.lists(st.builds(MessageStart, _phases), max_size=1),
    st.lists(st.builds(TextDelta, texts), max_size=3),
)
_reasoning: st.SearchStrategy[list[Delta]] = st.lists(st.builds(ReasoningDelta, texts), max_size=3)
deltas: st.SearchStrategy[list[Delta]] = st.builds(
    lambda groups, cut: [delta for group in groups for delta in group][:cut],
    st.lists(_message | _reasoning | _call, max_size=5),
    st.none() | st.integers(0, 12),
)
"""What a parser says of an answer: messages, reasoning and calls, cut at any place."""

_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}
_CALLS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}
_LIFECYCLE = ("created", "queued", "in_progress", "completed", "incomplete", "failed")


class EventOrder:
    """Takes a response's events one by one; fails where one may not come, or does not say what it must."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        """Those that are done."""
        self._number = 0
        self._open: dict[str, Any] | None = None
        self._stage = ""
        self._text = ""

    def take_all(self, events: Iterable[dict[str, Any]]) -> None:
        """A whole stream: its last event ends the response with the items that were done."""
        for event in events:
            self.take(event)
        assert event["type"].removeprefix("response.") in _LIFECYCLE[3:]
        assert event["response"]["output"] == self.items
        assert len({item["id"] for item in self.items}) == len(self.items)

    def take(self, event: dict[str, Any]) -> None:
        assert event["sequence_number"] == self._number
        self._number += 1
        kind = event["type"].removeprefix("response.")
        if kind in _LIFECYCLE:
            assert self._open is None
            assert kind != "created" or self._number == 1
            return
        assert event["output_index"] == len(self.items)
        if kind == "output_item.added":
            self._add(event["item"])
            return
        assert self._open is not None
        if kind == "output_item.done":
            self._done(event["item"], self._open)
            return
        assert event["item_id"] == self._open["id"]
        if self._open["type"] == "compaction":
            assert (kind, self._stage) == ("compaction.compacting", "added")
            self._stage = "text done"
            return
        if (family := _TEXTS.get(self._open["type"])) is not None:
            self._take_part(kind, event, family)
        else:
            self._take_call(kind, event, *_CALLS[self._open["type"]])

    def _add(self, item: dict[str, Any]) -> None:
        assert self._open is None
        assert item["status"] == "in_progress"
        assert item.get("content", []) == []
        assert "".join(item[field] for _, field in _CALLS.values() if field in item) == ""
        self._open, self._stage, self._text = item, "added", ""

    def _done(self, item: dict[str, Any], added: dict[str, Any]) -> None:
        said: dict[str, Any]
        if item["type"] in _TEXTS:
            assert self._stage == "part done"
            said = {"content": item["content"]}
            assert [part["text"] for part in item["content"]] == [self._text]
        elif item["type"] == "compaction":
            assert self._stage == "text done"
            said = {"encrypted_content": item["encrypted_content"]}
        else:
            assert self._stage == "text done"
            said = {_CALLS[item["type"]][1]: self._text}
        assert item["status"] in ("completed", "incomplete")
        assert item == {**added, **said, "status": item["status"]}
        self.items.append(item)
        self._open = None

    def _take_part(self, kind: str, event: dict[str, Any], family: str) -> None:
        assert event["content_index"] == 0
        if kind == "content_part.added":
            assert (self._stage, event["part"]["type"], event["part"]["text"]) == ("added", family, "")
            self._stage = "text"
        elif kind == f"{family}.delta":
            assert self._stage == "text"
            self._text += event["delta"]
        elif kind == f"{family}.done":
            assert (self._stage, event["text"]) == ("text", self._text)
            self._stage = "text done"
        else:
            assert (kind, self._stage) == ("content_part.done", "text done")
            assert (event["part"]["type"], event["part"]["text"]) == (family, self._text)
            self._stage = "part done"

    def _take_call(self, kind: str, event: dict[str, Any], family: str, field: str) -> None:
        assert self._stage == "added"
        if kind == f"{family}.delta":
            self._text += event["delta"]
        else:
            assert (kind, event[field]) == (f"{family}.done", self._text)
            self._stage = "text done"


def is_terminal(event: Event) -> bool:
    """Whether a response has ended with it."""
    return event_type(event) in TERMINAL
