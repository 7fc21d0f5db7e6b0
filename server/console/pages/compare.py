"""Two responses side by side: input, parameters, outputs as a diff, times and usage."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from typing import Any, Final, Literal, NamedTuple

import msgspec

from server.console.console_request import ConsoleRequest, pages
from server.console.item_view import ItemView, item_view
from server.errors import InvalidRequest, NotFound
from server.http.asgi.answers import Answer
from server.protocol import ids
from server.store.console import response_detail
from server.store.console.response_detail import Relative, ResponseDetail
from server.store.database import Connection

MAX_CHARS_BY_WORD: Final = 20_000
MAX_WORDS: Final = 3000
"""Words of a text; longer texts are compared by line."""
MAX_LINES: Final = 1000
"""Lines of a text; the lines behind them are not compared."""
MAX_SHOWN_CHARS: Final = 1000
"""Characters shown of an equal piece, half at each end, and of a parameter."""
MAX_PIECE_CHARS: Final = 20_000
"""Characters shown of a piece that differs."""


class ComparedParameter(NamedTuple):
    """A parameter of both requests as JSON; empty where one does not have it."""

    name: str
    a: str
    b: str
    differs: bool


class Piece(NamedTuple):
    """A part of a diff. The texts of `removed` are in the first alone, those of `added` in the second."""

    kind: Literal["equal", "removed", "added"]
    text: str


@dataclass(frozen=True, slots=True)
class TextDiff:
    pieces: Sequence[Piece]
    by: Literal["word", "line"]
    is_cut: bool
    """Lines behind the first `MAX_LINES` were not compared."""

    @property
    def is_equal(self) -> bool:
        return not self.is_cut and all(piece.kind == "equal" for piece in self.pieces)


def compare_parameters(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[ComparedParameter]:
    """All parameters by name, those that differ first."""
    names = sorted(a.keys() | b.keys(), key=lambda name: (a.get(name) == b.get(name), name))
    pairs = [(name, a.get(name) != b.get(name)) for name in names]
    return [ComparedParameter(name, _shown(a, name), _shown(b, name), differs) for name, differs in pairs]


def _shown(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return ""
    text = json.dumps(values[name], ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def text_of(items: Iterable[ItemView]) -> str:
    """Items as one text: a line with the title of each, then its parts."""
    texts = [[f"[{item.title}]", *(part.text for part in item.parts if part.text)] for item in items]
    return "\n".join("\n".join(text) for text in texts)


def compare_texts(a: str, b: str) -> TextDiff:
    """The diff. Texts of at most `MAX_CHARS_BY_WORD` characters are compared by word."""
    if max(len(a), len(b)) <= MAX_CHARS_BY_WORD:
        words_a, words_b = _words(a), _words(b)
        if max(len(words_a), len(words_b)) <= MAX_WORDS:
            return TextDiff(_pieces(words_a, words_b), "word", is_cut=False)
    lines_a, lines_b = a.splitlines(keepends=True), b.splitlines(keepends=True)
    is_cut = max(len(lines_a), len(lines_b)) > MAX_LINES and a != b
    return TextDiff(_pieces(lines_a[:MAX_LINES], lines_b[:MAX_LINES]), "line", is_cut)


def _words(text: str) -> list[str]:
    """Runs of letters and digits, and of spaces; every other character, and each of East Asia's, alone."""
    runs: list[str] = []
    for kind, run in groupby(text, _kind):
        characters = list(run)
        runs += characters if kind == "alone" else ["".join(characters)]
    return runs


def _kind(character: str) -> str:
    if character.isspace():
        return "space"
    return "word" if character.isalnum() and ord(character) < 0x2E80 else "alone"


def _pieces(a: Sequence[str], b: Sequence[str]) -> list[Piece]:
    pieces: list[Piece] = []
    begin = _common(a, b)
    end = _common(a[begin:][::-1], b[begin:][::-1])
    middle_a, middle_b = a[begin : len(a) - end], b[begin : len(b) - end]
    pieces.append(Piece("equal", _short("".join(a[:begin]))))
    for kind, from_a, to_a, from_b, to_b in SequenceMatcher(None, middle_a, middle_b).get_opcodes():
        if kind == "equal":
            pieces.append(Piece("equal", _short("".join(middle_a[from_a:to_a]))))
            continue
        pieces.append(Piece("removed", "".join(middle_a[from_a:to_a])[:MAX_PIECE_CHARS]))
        pieces.append(Piece("added", "".join(middle_b[from_b:to_b])[:MAX_PIECE_CHARS]))
    pieces.append(Piece("equal", _short("".join(a[len(a) - end :]))))
    return [piece for piece in pieces if piece.text]


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the common prefix."""
    pairs = zip(a, b, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _short(text: str) -> str:
    if len(text) <= 2 * MAX_SHOWN_CHARS:
        return text
    half = MAX_SHOWN_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} equal characters …\n{text[-half:]}"


_MAX_OFFERED = 30


@pages("GET /compare")
def show(console: ConsoleRequest) -> Answer:
    """`a` and `b` are the responses."""
    a, b, offered = console.database.read(lambda connection: _read(connection, console))
    if a is None or b is None:
        first = None if a is None else a.facts
        return console.page("compare.html", a=first, b=None, offered=offered)
    return console.page(
        "compare.html",
        a=a.facts,
        b=b.facts,
        offered=offered,
        parameters=compare_parameters(_parameters(a), _parameters(b)),
        input_diff=_diff(a.inputs, b.inputs) if console.is_admin else None,
        output_diff=_diff(a.outputs, b.outputs) if console.is_admin else None,
    )


def _diff(a: list[response_detail.StoredItem], b: list[response_detail.StoredItem]) -> Any:
    return compare_texts(text_of(map(item_view, a)), text_of(map(item_view, b)))


def _parameters(detail: ResponseDetail) -> dict[str, Any]:
    """Return the request's parameters as the response repeats them; empty without contents."""
    parameters: dict[str, Any] = msgspec.json.decode(detail.request) if detail.request else {}
    return parameters


def _read(
    connection: Connection, console: ConsoleRequest
) -> tuple[ResponseDetail | None, ResponseDetail | None, list[Relative]]:
    """The two responses, as far as they are chosen, and those that the first may be compared with."""
    a, b = _find(connection, console, "a"), _find(connection, console, "b")
    return a, b, [] if a is None else _offered(connection, a)


def _find(connection: Connection, console: ConsoleRequest, name: str) -> ResponseDetail | None:
    """The response that a parameter of the address names; None without the parameter."""
    value = console.argument(name)
    if not value:
        return None
    response = ids.parse_response_id(value)
    if response is None:
        raise InvalidRequest(f"{name} must be the id of a response, not '{value[:100]}'.", param=name)
    detail = response_detail.read_detail(connection, response, contents=console.is_admin)
    if detail is None:
        raise NotFound(f"There is no response {value[:100]}.", param=name)
    return detail


def _offered(connection: Connection, a: ResponseDetail) -> list[Relative]:
    """Responses of one chain, conversation and branches; first the siblings, which answer one history."""
    siblings: list[Relative] = []
    if len(a.chain) > 1:
        siblings = response_detail.read_branches(connection, a.facts["tenant"], a.chain[-2].id)
    relatives = {row.id: row for row in [*siblings, *reversed(a.chain), *a.branches, *a.conversation]}
    return [row for row in relatives.values() if row.id != a.facts["id"] and not row.deleted][:_MAX_OFFERED]
