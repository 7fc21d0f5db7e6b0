"""Log formats: text, one line a record with unprintable characters escaped, and JSON, one object a line.

Text of callers, models and tools could forge a line with a line feed, or hold a terminal's escape sequences.
"""

import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from server.logs.context import CURRENT

FIELDS = (
    "request_id", "response_id", "tenant", "key_id", "replica", "client", "method", "route", "status",
    "error_code", "limit", "model", "attempt", "input_tokens", "cached_tokens", "output_tokens",
    "reasoning_tokens", "queue_ms", "ttft_ms", "ms", "events", "bytes", "messages", "left_out",
)  # fmt: skip
"""The fields of a line, in this order: attributes of its record (`extra`), or the current request's."""
IN_MESSAGE = frozenset({"request_id", "response_id", "method", "route", "status", "limit"})
_REQUEST = "request_fields"
_ENGINE_REQUEST = re.compile(r"\b([0-9a-f]{32})(?:\.[0-9]+)?\b")
"""The engine names a request by the digits of its response's id, and its turn."""


def keep_request(record: logging.LogRecord) -> None:
    """Keeps the current request's fields in the record, for a formatter on another thread."""
    request = CURRENT.get()
    record.__dict__[_REQUEST] = {} if request is None else request.log_fields()


def record_fields(record: logging.LogRecord, process: Mapping[str, object]) -> dict[str, object]:
    """The fields of a record, in the order of FIELDS; `process` are those of every line."""
    own = record.__dict__
    if _REQUEST not in own:
        keep_request(record)
    extra = {name: own[name] for name in FIELDS if name in own and own[name] is not None}
    known = {**process, **own[_REQUEST], **extra}
    if record.name.startswith("engine.") and (named := _ENGINE_REQUEST.search(record.getMessage())):
        known["response_id"] = f"resp_{named[1]}"
    return {name: known[name] for name in FIELDS if name in known}


def message_of(record: logging.LogRecord) -> str:
    """The record's message, in which responses have their public ids."""
    message = record.getMessage()
    return _ENGINE_REQUEST.sub(r"resp_\1", message) if record.name.startswith("engine.") else message


class OneLineFormatter(logging.Formatter):
    """`time LEVEL logger: message field=value …`; the lines of a traceback follow, indented.

    A field of IN_MESSAGE that the message says already is left out.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, and the traceback's."""
        message = message_of(record)
        fields = record_fields(record, {})
        new = [
            (name, each)
            for name, each in fields.items()
            if name not in IN_MESSAGE or str(each) not in message
        ]
        record.message = escape_unprintable(message + "".join(f" {name}={each}" for name, each in new))
        record.asctime = self.formatTime(record, self.datefmt)
        details = [line for text in _details(self, record) for line in text.split("\n")]
        return "\n".join([self.formatMessage(record), *("  " + escape_unprintable(line) for line in details)])


class JsonFormatter(logging.Formatter):
    """An object: `ts` (RFC 3339, UTC, milliseconds), `level`, `logger`, `msg`, the fields, `traceback`."""

    def __init__(self) -> None:
        super().__init__()
        self.process_fields: dict[str, object] = {}
        """Fields of every line: this replica's id."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's object, in one line: control characters are escaped in JSON."""
        at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "ts": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": message_of(record),
            **record_fields(record, self.process_fields),
        }
        if details := _details(self, record):
            line["traceback"] = "\n".join(details)
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except UnicodeEncodeError:  # a lone surrogate
            escaped = {name: escape_unprintable(str(value)) for name, value in line.items()}
            return msgspec.json.encode(escaped).decode()


def _details(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    details = [formatter.formatException(record.exc_info)] if record.exc_info else []
    if record.stack_info:
        details.append(formatter.formatStack(record.stack_info))
    return details


def escape_unprintable(text: str) -> str:
    """The text with control, format and separator characters, and lone surrogates, as Python's escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
