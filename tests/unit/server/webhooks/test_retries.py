from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from server.store.webhooks.outbox import RETRIED_FOR
from server.webhooks.retries import (
    MAX_PAUSE_SECONDS,
    MAX_RETRY_AFTER_SECONDS,
    ReceiverAnswer,
    judge,
    pause_before_next,
    retry_after_seconds,
)

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


def decide(answer: ReceiverAnswer, attempt: int = 1) -> tuple[bool, float, float, bool]:
    verdict = judge(answer, attempt, 5.0, NOW, lambda: 0.0)
    return verdict.error is None, verdict.pause_seconds, verdict.throttle_seconds, verdict.is_gone


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_only_2xx_is_receipt(status: int) -> None:
    assert decide(ReceiverAnswer(status)) == (True, 0, 0, False)


@pytest.mark.parametrize("status", [100, 199, 301, 302, 307, 400, 401, 404, 429, 500, 503, 999])
def test_any_other_status_is_tried_again(status: int) -> None:
    assert decide(ReceiverAnswer(status)) == (False, 5, 0, False)


def test_no_answer_is_tried_again_and_says_why() -> None:
    verdict = judge(ReceiverAnswer(None, error="There was no answer."), 1, 5.0, NOW, lambda: 0.0)
    assert (verdict.error, verdict.pause_seconds) == ("There was no answer.", 5)


def test_a_receiver_that_answers_410_wants_no_more() -> None:
    assert decide(ReceiverAnswer(410)) == (False, 5, 0, True)


def test_pauses_double_up_to_eight_hours_and_fill_three_days() -> None:
    pauses = [pause_before_next(attempt, 5.0, lambda: 0.0) for attempt in range(1, 25)]
    assert pauses[:4] == [5, 10, 20, 40]
    assert max(pauses) == MAX_PAUSE_SECONDS == 8 * 3600
    total, attempts = 0.0, 0
    while total < RETRIED_FOR.total_seconds():
        total += pauses[attempts]
        attempts += 1
    assert attempts == 21
    assert pause_before_next(10**6, 3600.0, lambda: 0.0) == MAX_PAUSE_SECONDS


def test_a_pause_is_shortened_by_a_quarter_at_most() -> None:
    assert pause_before_next(1, 8.0, lambda: 1.0) == 6


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_receiver_that_asks_for_a_pause_gets_it(status: int) -> None:
    assert decide(ReceiverAnswer(status, "120")) == (False, 120, 120, False)
    assert decide(ReceiverAnswer(status, "1"), attempt=3) == (False, 20, 1, False)


def test_other_answers_cannot_ask_for_a_pause() -> None:
    assert decide(ReceiverAnswer(500, "120")) == (False, 5, 0, False)


@pytest.mark.parametrize("header", ["99999999999999999999", "9" * 5000, "7200"])
def test_a_receiver_cannot_ask_for_more_than_an_hour(header: str) -> None:
    assert retry_after_seconds(header, NOW) == MAX_RETRY_AFTER_SECONDS == 3600
    assert retry_after_seconds("Fri, 31 Dec 9999 23:59:59 GMT", NOW) == MAX_RETRY_AFTER_SECONDS


@pytest.mark.parametrize("header", [None, "", "-5", "1e9", "soon", "٣", "0x10", "Mon, 99 Foo", "\x00", "1.5"])
def test_a_header_that_is_none_asks_for_nothing(header: str | None) -> None:
    assert retry_after_seconds(header, NOW) == 0


@pytest.mark.parametrize(
    "header",
    [
        "Mon, 01 Jan 99999999999 00:00:00 GMT",
        "Mon, 01 Jan 2026 00:00:00 +99999999999999999999",
        "Mon, 01 Jan 2026 99999999999999999999:00:00 GMT",
    ],
)
def test_a_date_whose_numbers_overflow_asks_for_nothing(header: str) -> None:
    assert decide(ReceiverAnswer(429, header)) == (False, 5, 0, False)


def test_a_pause_may_be_a_date() -> None:
    assert retry_after_seconds(format_datetime(NOW + timedelta(seconds=90), usegmt=True), NOW) == 90
    assert retry_after_seconds(format_datetime(NOW - timedelta(days=1), usegmt=True), NOW) == 0
    assert retry_after_seconds("Mon, 04 May 2026 03:02:31", NOW) == 30
