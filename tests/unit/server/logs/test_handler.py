import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from server.logs.formats import JsonFormatter
from server.logs.handler import NonBlockingHandler, fold_key
from tests.support.eventually import eventually


@dataclass
class Written:
    """A logger whose handler writes into a pipe."""

    log: logging.Logger
    handler: NonBlockingHandler
    read_end: int

    def lines(self) -> list[dict[str, object]]:
        """What is in the pipe after all has been written."""
        self.handler.flush()
        return [json.loads(line) for line in os.read(self.read_end, 1 << 20).decode().splitlines()]


@pytest.fixture
def written() -> Iterator[Written]:
    read_end, write_end = os.pipe()
    handler = NonBlockingHandler(write_end, max_lines=500)
    handler.setFormatter(JsonFormatter())
    log = logging.Logger("holdfast.test")  # noqa: LOG001 - apart from those of other tests
    log.addHandler(handler)
    yield Written(log, handler, read_end)
    os.close(read_end)  # its thread is a daemon, whose writes fail from here on
    handler.close()


def test_lines_come_in_order(written: Written) -> None:
    for number in range(100):
        written.log.info("%d", number)
    assert [line["msg"] for line in written.lines()] == [str(number) for number in range(100)]


def test_the_same_warning_is_one_line_and_its_count_another(written: Written) -> None:
    for attempt in range(50):
        written.log.warning("commit failed, trying again: %s", "OperationalError", extra={"attempt": attempt})
    written.log.info("between")
    first, other, counted = written.lines()
    assert (first["msg"], other["msg"]) == ("commit failed, trying again: OperationalError", "between")
    assert (counted["msg"], counted["left_out"]) == (first["msg"], 49)


def test_a_warning_of_another_tenant_or_limit_is_another_warning(written: Written) -> None:
    for tenant, limit in (("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")):
        written.log.warning("limit reached: %s", limit, extra={"tenant": tenant, "limit": limit})
    lines = written.lines()
    assert [(line["tenant"], line["limit"], line.get("left_out")) for line in lines] == [
        ("a", "x", None),
        ("b", "x", None),
        ("a", "y", None),
        ("a", "x", 1),
    ]


def test_errors_of_the_same_words_from_another_place_are_other_errors() -> None:
    def record(number: int) -> logging.LogRecord:
        try:
            _ = [int("x"), 1 / 0][0] if number else 1 / 0
        except Exception as error:  # noqa: BLE001
            info = (type(error), error, error.__traceback__)
            return logging.LogRecord("a", logging.ERROR, "", 0, "failed", (), info)
        raise AssertionError

    assert fold_key(record(0)) == fold_key(record(0))
    assert fold_key(record(0)) != fold_key(record(1))


def test_who_logs_never_waits_for_a_reader_and_learns_later_what_was_dropped(written: Written) -> None:
    for number in range(20_000):
        written.log.info("%d %s", number, "x" * 200)
    read = b""

    def dropped() -> bool:
        nonlocal read
        read += os.read(written.read_end, 1 << 20)
        return b"were dropped" in read

    eventually(dropped)
    lines = [json.loads(line) for line in read.decode().splitlines()]
    (count,) = [int(line["msg"].split()[0]) for line in lines if "were dropped" in line["msg"]]
    assert count + len(lines) - 1 == 20_000
