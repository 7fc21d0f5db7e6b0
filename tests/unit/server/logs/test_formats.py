import io
import json
import logging
import re
from collections.abc import Callable
from uuid import UUID

import pytest

from server.logs.context import CURRENT, RequestContext, response_fields
from server.logs.formats import JsonFormatter, OneLineFormatter, escape_unprintable

FORGED = "x\n2026-01-01 00:00:00,000 CRITICAL holdfast.keeper: all is lost"
OURS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ holdfast\.test: ")


def logged(write: Callable[[logging.Logger], None]) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLineFormatter())
    log = logging.getLogger("holdfast.test")
    log.addHandler(handler)
    log.propagate = False
    try:
        write(log)
    finally:
        log.removeHandler(handler)
        log.propagate = True
    return stream.getvalue().removesuffix("\n").split("\n")


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"])
def test_text_of_a_caller_cannot_begin_a_line(end: str) -> None:
    (line,) = logged(lambda log: log.warning("a tool of type %s is left out", FORGED.replace("\n", end)))
    assert OURS.match(line)
    assert line.isprintable()


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b2J", "\x07", "\x00", "\u202e", "\ud800", "\u200b", "\x7f"])
def test_text_of_a_caller_cannot_speak_to_the_terminal(text: str) -> None:
    assert escape_unprintable(f"a{text}b").isprintable()
    assert escape_unprintable(f"a{text}b").encode()


def test_ordinary_text_of_any_script_is_left_as_it_is() -> None:
    text = "ünï 😀 漢字 \\n 'quoted'"
    assert escape_unprintable(text) == text


def test_lines_of_a_traceback_are_told_from_the_logs_own() -> None:
    def write(log: logging.Logger) -> None:
        try:
            raise ValueError(FORGED)
        except ValueError:
            log.exception("failed")

    first, *rest = logged(write)
    assert OURS.match(first)
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in rest)


def test_stack_is_shown_as_a_traceback_is() -> None:
    first, *rest = logged(lambda log: log.warning("here", stack_info=True))
    assert first.endswith("here")
    assert rest[0] == "  Stack (most recent call last):"


def as_json(record: logging.LogRecord) -> dict[str, object]:
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found: dict[str, object] = json.loads(line)
    return found


def record_of(
    message: str, *arguments: object, name: str = "holdfast.test", **extra: object
) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, "", 0, message, arguments, None)
    made.__dict__.update(extra)
    return made


def test_json_has_the_time_in_utc_with_milliseconds() -> None:
    record = record_of("hello")
    record.created = 1_800_000_000.0129
    assert as_json(record) == {
        "ts": "2027-01-15T08:00:00.012Z",
        "level": "warning",
        "logger": "holdfast.test",
        "msg": "hello",
    }


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "\ud800", '"}', "ünï 😀"])
def test_any_text_of_a_caller_is_one_object(text: str) -> None:
    assert str(as_json(record_of("%s", text))["msg"]).encode("utf-16", "surrogatepass")


def test_fields_are_those_of_the_record_and_of_the_current_request() -> None:
    response = UUID(int=7)
    token = CURRENT.set(RequestContext("req_1", tenant="acme", key_id="k1", responses=[response]))
    try:
        mine = as_json(record_of("a", status=200, key_id=None, unknown="x"))
        other = as_json(record_of("a", **response_fields(UUID(int=8), "b", None, "req_2")))
        text = OneLineFormatter().format(record_of("POST /v1 %d", 200, status=200, ms=1.5))
    finally:
        CURRENT.reset(token)
    ids = {"request_id": "req_1", "response_id": f"resp_{response.hex}", "tenant": "acme", "key_id": "k1"}
    assert {name: mine[name] for name in list(mine)[4:]} == {**ids, "status": 200}
    assert (other["request_id"], other["response_id"], other["tenant"]) == ("req_2", f"resp_{8:032x}", "b")
    assert text.endswith(
        f"POST /v1 200 request_id=req_1 response_id=resp_{response.hex} tenant=acme key_id=k1 ms=1.5"
    )


def test_the_engines_names_of_requests_are_ids_of_responses() -> None:
    digits = f"{9:032x}"
    line = as_json(record_of("request %s failed (%s)", f"{digits}.2", "oom", name="engine.core.engine_core"))
    assert (line["msg"], line["response_id"]) == (f"request resp_{digits} failed (oom)", f"resp_{digits}")


def test_a_traceback_is_a_field() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        record = record_of("failed")
        record.exc_info = (ValueError, error, error.__traceback__)
    assert str(as_json(record)["traceback"]).startswith("Traceback (most recent call last):\n")
