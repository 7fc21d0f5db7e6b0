"""Formats of the console's values: times, durations, numbers, sizes, JSON, Markdown. Pure.

`FILTERS` are those of templates. Markdown of models and callers becomes HTML that runs and loads nothing.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import escape
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererProtocol
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

NOTHING: Final = "\N{EN DASH}"
_SPREADSHEET_FORMULA = ("=", "+", "-", "@", "\t", "\r")
MAX_GROWTH: Final = 8
"""How many characters indentation may add to each of a JSON text: that of nested lists is quadratic."""
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def time_of_day(value: datetime | int | None) -> str:
    """The day and the time in UTC to the second, of a time or Unix seconds; the title has the year."""
    return NOTHING if value is None else f"{_in_utc(value):%m-%d %H:%M:%S}"


def exact_time(value: datetime | int | None) -> str:
    """The date and the time in UTC to the millisecond, of a time or Unix seconds."""
    return NOTHING if value is None else f"{_in_utc(value):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _in_utc(value: datetime | int) -> datetime:
    return datetime.fromtimestamp(value, UTC) if isinstance(value, int) else value.astimezone(UTC)


def seconds(value: float | timedelta | None) -> str:
    """A duration with three digits or so: `84 ms`, `1.42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`."""
    if value is None:
        return NOTHING
    length = value.total_seconds() if isinstance(value, timedelta) else value
    if length < 1:
        return f"{length * 1000:.0f} ms"
    if length < 60:
        return f"{length:.2f} s" if length < 10 else f"{length:.1f} s"
    whole = round(length)
    for unit, name, below, below_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // below} {below_name}"
    return f"{whole} s"


def number(value: float | Decimal | None) -> str:
    """With thin spaces between thousands; up to three decimals of what is not whole."""
    if value is None:
        return NOTHING
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")
    return text.replace(",", "\N{NARROW NO-BREAK SPACE}")


def size(value: int | None) -> str:
    """Bytes, in units of 1,000."""
    if value is None:
        return NOTHING
    amount, unit = float(value), _UNITS[0]
    for unit in _UNITS:
        if abs(amount) < 1000 or unit == _UNITS[-1]:
            break
        amount /= 1000
    return f"{value} B" if unit == "B" else f"{amount:.3g} {unit}"


def percent(value: float | Decimal | None) -> str:
    """A share from 0 to 1."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def short_id(name: str | None) -> str:
    """The prefix, and the last eight characters, which are random."""
    if name is None:
        return NOTHING
    prefix, separator, rest = name.partition("_")
    return name if len(rest) <= 12 else f"{prefix}{separator}…{rest[-8:]}"


def pretty_json(value: Any) -> str:
    """A JSON text, or a value, indented; a text that is no JSON, or would grow too much, as it is."""
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode(errors="replace")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    if _indentation(value) > MAX_GROWTH * len(text):
        return text
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _indentation(value: Any) -> int:
    """The spaces before a value's keys and elements, two for each level."""
    spaces, depth, level = 0, 0, [value]
    while level:
        depth += 2
        level = [child for element in level for child in _children(element)]
        spaces += depth * len(level)
    return spaces


def _children(value: Any) -> Iterable[Any]:
    match value:
        case Mapping():
            return value.values()
        case list() | tuple():
            return value
        case _:
            return ()


def csv_value(value: object) -> object:
    """A value as spreadsheets read it; a text that would be a formula there gets an apostrophe."""
    match value:
        case str() if value.startswith(_SPREADSHEET_FORMULA):
            return f"'{value}"
        case datetime():
            return value.astimezone(UTC).isoformat()
        case Mapping():
            return csv_value(" ".join(f"{key}={element}" for key, element in value.items()))
        case _:
            return value


MAX_MARKDOWN_CHARS = 16_000
"""The longest text that is rendered: a character takes up to 0.013 ms of CPU time, most of it brackets."""
_LINK_SCHEMES = ("http://", "https://", "mailto:")


def render_markdown(text: str) -> Markup:
    """The text as HTML. Raw HTML is shown as text, a picture as a link, a text that is too long as it is."""
    if len(text) > MAX_MARKDOWN_CHARS:
        return Markup("<pre>%s</pre>") % text
    return Markup(_MARKDOWN.render(text))  # noqa: S704 - the renderer escapes, with HTML off


def _image_as_link(
    _renderer: RendererProtocol, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType
) -> str:
    token = tokens[index]
    source = str(token.attrGet("src") or "")
    label = escape(token.content or source)
    if not source.startswith(_LINK_SCHEMES):
        return f"[{label}]"
    return f'<a href="{escape(source)}" rel="noreferrer noopener">[{label}]</a>'


def _open_link(
    renderer: RendererProtocol, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    tokens[index].attrSet("rel", "noreferrer noopener")
    return str(renderer.renderToken(tokens, index, options, env))  # type: ignore[attr-defined]


def _make_parser() -> MarkdownIt:
    """CommonMark with tables and strikethrough, without raw HTML. Links go to the web or to mail alone."""
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: url.strip().lower().startswith(_LINK_SCHEMES)  # type: ignore[method-assign]
    parser.add_render_rule("image", _image_as_link)
    parser.add_render_rule("link_open", _open_link)
    return parser


_MARKDOWN = _make_parser()

FILTERS: Final[Mapping[str, Callable[..., str]]] = {
    "time": time_of_day,
    "exact_time": exact_time,
    "seconds": seconds,
    "number": number,
    "size": size,
    "percent": percent,
    "short_id": short_id,
    "pretty_json": pretty_json,
    "markdown": render_markdown,
}
