"""An item as the response's page shows it: its texts, arguments, outputs, pictures and files. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from server.console.value_formats import MAX_MARKDOWN_CHARS, pretty_json
from server.store.console.response_detail import StoredItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of an item. `kind` is text (Markdown), json, code, image, file, refusal or note."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemView:
    stored: StoredItem
    title: str
    """The item's heading: user, assistant, reasoning, the name of a called tool and so on."""
    style: str
    """The class of its frame: message, reasoning, call, output or other."""
    parts: list[Part] = field(default_factory=list)


MARKDOWN_CHARS = 150_000
"""Characters of a page that are rendered as Markdown, two seconds' work at most; the rest is plain."""
_CHARS_OF_A_TEXT = 3
"""Cost of rendering an empty text, in characters."""


def item_views(stored: Iterable[StoredItem]) -> list[ItemView]:
    """All items of one page: of two lists on it, both."""
    remaining = MARKDOWN_CHARS
    views = []
    for item in stored:
        view = item_view(item)
        sizes = [len(part.text) + _CHARS_OF_A_TEXT for part in view.parts if part.kind == "text"]
        remaining -= sum(size for size in sizes if size <= MAX_MARKDOWN_CHARS)
        views.append(view if remaining >= 0 else _plain(view))
    return views


def _plain(view: ItemView) -> ItemView:
    """The item without Markdown."""
    parts = [replace(part, kind="code") if part.kind == "text" else part for part in view.parts]
    return replace(view, parts=parts)


def item_view(stored: StoredItem) -> ItemView:
    """The item. One whose JSON is cut or not an object is shown as the text that there is."""
    try:
        payload = json.loads(stored.payload)
    except (ValueError, RecursionError):
        payload = None
    parts = [Part(kind="code", text=stored.payload)]
    if isinstance(payload, dict):
        parts = list(_parts(stored.type, payload))
    return ItemView(stored=stored, title=_title(stored), style=_style(stored.type), parts=parts)


def _title(stored: StoredItem) -> str:
    if stored.type == "message":
        return stored.role or "message"
    return f"{stored.type} {stored.name}" if stored.name else stored.type


def _style(kind: str) -> str:
    if kind in ("message", "reasoning"):
        return kind
    if kind.endswith("_output"):
        return "output"
    return "call" if kind.endswith("_call") else "other"


def _parts(kind: str, payload: Mapping[str, Any]) -> Iterator[Part]:
    if kind == "message":
        yield from _content(payload.get("content"))
    elif kind == "reasoning":
        for name in ("summary", "content"):
            yield from _content(payload.get(name))
    elif kind.endswith("_output"):
        yield from _output(payload.get("output"))
    elif kind.endswith("_call"):
        yield from _call(payload)
    else:
        yield Part(kind="json", text=pretty_json(payload))


def _content(content: object) -> Iterator[Part]:
    """A message's parts, or its text."""
    if isinstance(content, str):
        yield Part(kind="text", text=content)
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict):
            yield _content_part(part)


def _content_part(part: Mapping[str, Any]) -> Part:
    match part:
        case {"refusal": str(refusal)}:
            return Part(kind="refusal", text=refusal)
        case {"text": str(words)}:
            return Part(kind="text", text=words)
        case {"type": "input_image"}:
            return Part(kind="image", text=_reference(part, "image_url"))
        case {"type": "input_file"}:
            return Part(kind="file", text=str(part.get("filename") or _reference(part, "file_url")))
        case _:
            return Part(kind="json", text=pretty_json(part))


def _reference(part: Mapping[str, Any], name: str) -> str:
    """Where a picture or file is, without its data."""
    source = str(part.get(name) or part.get("file_id") or "")
    return source.partition(",")[0] if source.startswith("data:") else source[:500]


def _output(output: object) -> Iterator[Part]:
    if isinstance(output, str):
        yield Part(kind="json", text=pretty_json(output))
    elif isinstance(output, list):
        yield from _content(output)
    elif output is not None:
        yield Part(kind="json", text=pretty_json(output))


def _call(payload: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the arguments of a call and, if the server made the call, its result."""
    for name in ("arguments", "input", "code", "action", "queries"):
        if payload.get(name):
            is_code, value = name in ("code", "input"), payload[name]
            text = value if is_code and isinstance(value, str) else pretty_json(value)
            yield Part(kind="code" if is_code else "json", text=text)
    for name in ("output", "outputs", "results", "error"):
        if payload.get(name):
            yield Part(kind="note", text=name)
            yield Part(kind="json", text=pretty_json(payload[name]))
