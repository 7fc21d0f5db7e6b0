import threading
from time import monotonic

import pytest

from engine.request import Failed, Finished, Tokens, TokenUsage
from server.recording.inbox import NO_PAUSE, Inbox, Pause
from server.recording.recorder_messages import RecorderMessage

HOUR = 3600.0
FIRST: list[RecorderMessage] = [
    Tokens("a", (1,)),
    Finished("a", "stop", TokenUsage()),
    Failed("a", "out_of_memory", "", TokenUsage()),
]


def paused(longest: float, urgent: float = 0.0) -> Pause:
    """A pause that begins now."""
    return Pause(monotonic() + longest, monotonic() + urgent)


def gathered_within(box: Inbox, pause: float) -> list[RecorderMessage]:
    """What is gathered on another thread, which must not take the whole pause."""
    found: list[RecorderMessage] = []
    reader = threading.Thread(target=lambda: found.extend(box.gather(paused(pause))), daemon=True)
    reader.start()
    reader.join(30)
    assert not reader.is_alive()
    return found


def test_all_deliveries_are_gathered_in_order_where_there_is_no_pause() -> None:
    box = Inbox()
    box.put([Tokens("a", (1,)), Tokens("b", (2,))])
    box.put([Tokens("a", (3,))])
    assert len(box) == 2
    assert box.gather() == [Tokens("a", (1,)), Tokens("b", (2,)), Tokens("a", (3,))]
    assert not box


@pytest.mark.parametrize("first", FIRST)
def test_the_first_message_of_a_request_ends_the_pause(first: RecorderMessage) -> None:
    box = Inbox()
    box.expect("a")
    box.put([Tokens("b", (2,))])
    box.put([first])
    assert gathered_within(box, HOUR) == [Tokens("b", (2,)), first]


@pytest.mark.parametrize("last", FIRST[1:])
def test_the_last_message_of_a_request_ends_the_pause(last: RecorderMessage) -> None:
    box = Inbox()
    box.expect("a")
    box.put([Tokens("a", (1,))])
    assert gathered_within(box, 0.0) == [Tokens("a", (1,))]
    box.put([Tokens("a", (2,))])
    box.put([last])
    assert gathered_within(box, HOUR) == [Tokens("a", (2,)), last]


def test_tokens_after_the_first_wait_for_the_end_of_the_pause() -> None:
    box = Inbox(max_wait=0.001)
    for request in ("a", "never answered"):
        box.expect(request)
    box.forget("never answered")
    box.put([Tokens("a", (1,))])
    box.gather()
    box.put([Tokens("a", (2,))])
    box.put([Tokens("never answered", (2,))])
    pause = paused(0.05)
    assert len(box.gather(pause)) == 2
    assert monotonic() >= pause.longest


@pytest.mark.parametrize("first", FIRST)
def test_even_an_urgent_message_waits_for_as_long_as_the_pause_says(first: RecorderMessage) -> None:
    box = Inbox()
    box.expect("a")
    box.put([first])
    pause = paused(HOUR, 0.05)
    assert box.gather(pause) == [first]
    assert pause.urgent <= monotonic() < pause.longest


def test_what_comes_while_an_urgent_message_waits_is_in_the_same_commit() -> None:
    waits: list[float] = []

    def come_meanwhile(seconds: float) -> None:
        waits.append(seconds)
        box.put([Tokens("b", (2,))])

    box = Inbox(sleep=come_meanwhile)
    box.expect("a")
    box.put([FIRST[0]])
    assert box.gather(paused(HOUR, HOUR)) == [FIRST[0], Tokens("b", (2,))]
    assert 0 < waits[0] <= HOUR


@pytest.mark.parametrize("first", FIRST)
def test_the_first_message_of_a_request_does_not_wait_where_the_last_pause_is_over(
    first: RecorderMessage,
) -> None:
    waits: list[float] = []
    box = Inbox(sleep=waits.append)
    box.expect("a")
    for pause in (NO_PAUSE, paused(0.0), paused(HOUR)):
        box.put([first])
        assert box.gather(pause) == [first]
        box.expect("a")
    assert sum(waits) == 0


def test_nothing_is_got_where_nothing_comes_in_time() -> None:
    assert list(Inbox().get(0.001)) == []
