import io
import logging
import re
from collections.abc import Callable

import pytest

from server.process.log_format import OneLineFormatter, escape_unprintable

FORGED = "x\n2026-01-01 00:00:00,000 CRITICAL holdfast.keeper: all is lost"
OURS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ holdfast\.test: ")


def logged(write: Callable[[logging.Logger], None]) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
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
