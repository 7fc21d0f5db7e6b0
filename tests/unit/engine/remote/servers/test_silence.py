"""How long a call without an answer waits on, and whose fault it is then."""

from engine.remote.servers.silence import (
    COMMENT_SILENCES,
    RECHECK_SECONDS,
    CallSigns,
    ServerSigns,
    judge,
    next_look,
)

SILENCE = 300.0


def kind(call: CallSigns, server: ServerSigns, now: float) -> str | None:
    fault = judge(call, server, SILENCE, now)
    return None if fault is None else fault.kind


def test_a_call_waits_as_long_as_its_server_goes_on_with_others() -> None:
    call, server = CallSigns(0, 0), ServerSigns()
    for now in range(0, 10_000, 100):
        server.chunk_at = now
        assert kind(call, server, now + 99) is None


def test_a_server_hangs_when_none_of_its_calls_has_had_a_chunk_for_the_silence() -> None:
    call, server = CallSigns(0, 0), ServerSigns(chunk_at=50)
    assert kind(call, server, 349) is None
    assert kind(call, server, 350) == "failed"
    assert next_look(call, server, SILENCE, 340) == 345
    assert next_look(call, server, SILENCE, 349) == 350


def test_a_new_call_has_the_whole_silence_at_a_server_that_had_nothing_to_do() -> None:
    call, server = CallSigns(1000, 1000), ServerSigns(chunk_at=0)
    assert kind(call, server, 1299) is None
    assert kind(call, server, 1300) == "failed"
    assert next_look(call, server, SILENCE, 1000) == 1300


def test_comments_are_not_waited_for_without_end() -> None:
    call, server = CallSigns(0, 0), ServerSigns()
    for now in range(0, int(COMMENT_SILENCES * SILENCE), 30):
        call.byte_at = now
        assert kind(call, server, now + 29) is None
    assert kind(call, server, COMMENT_SILENCES * SILENCE) == "failed"


def test_chunks_about_a_long_prompt_are_waited_for_without_end() -> None:
    call, server = CallSigns(0, 0), ServerSigns()
    for now in range(0, 10_000, 290):
        call.chunk_at = call.byte_at = server.chunk_at = now
        assert kind(call, server, now + 289) is None


def test_a_call_is_lost_if_its_server_goes_on_and_says_for_the_silence_that_nobody_waits() -> None:
    call, server = CallSigns(0, 0), ServerSigns()
    for now in range(5, 305, 5):
        server.chunk_at = now
        server.report(0, now)
        assert kind(call, server, now) is None
    server.report(0, 305)
    assert kind(call, server, 305) == "lost"


def test_a_call_may_be_the_one_that_waits() -> None:
    call, server = CallSigns(0, 0), ServerSigns()
    for now in range(5, 10_000, 5):
        server.chunk_at = now
        server.report(1 if now % 250 == 0 else 0, now)
        assert kind(call, server, now) is None


def test_a_server_that_does_not_say_how_many_wait_has_lost_no_call() -> None:
    call, server = CallSigns(0, 0), ServerSigns()
    for now in range(5, 10_000, 5):
        server.chunk_at = now
        server.report(None, now)
        assert kind(call, server, now) is None


def test_reports_of_before_the_call_say_nothing_about_it() -> None:
    call, server = CallSigns(1000, 1000), ServerSigns(unqueued_from=0, unqueued_until=1001, chunk_at=1301)
    assert kind(call, server, 1302) is None


def test_a_silent_call_of_a_server_at_work_is_looked_at_again_and_again() -> None:
    call, server = CallSigns(0, 0), ServerSigns(chunk_at=399)
    assert next_look(call, server, SILENCE, 400) == 400 + RECHECK_SECONDS
