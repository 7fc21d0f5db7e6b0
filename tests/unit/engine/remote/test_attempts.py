"""What a request has tried, and when it gives up."""

from engine.remote.engine_protocol import CallFault, CallFaultKind
from engine.remote.request_tasks import MAX_FAILURES, Attempts


def fault(kind: CallFaultKind) -> CallFault:
    return CallFault(kind, f"It is {kind}.")


def test_servers_that_turn_a_request_away_do_not_begin_its_wait_again() -> None:
    attempts = Attempts(since=10, length=2)
    for now in range(11, 300):
        attempts.count("http://one", fault("overloaded"), 2, now)
        assert attempts.trouble(fault("overloaded")) is None
    assert (attempts.since, attempts.failures) == (10, 0)
    outage = CallFault("failed", "No server takes it")
    assert attempts.outage(outage) == "No server takes it; at last: It is overloaded."


def test_a_token_begins_the_wait_again_and_forgives_every_server() -> None:
    attempts = Attempts(since=10, length=2)
    attempts.count("http://one", fault("failed"), 2, 20)
    attempts.count("http://two", fault("overloaded"), 3, 30)
    assert (attempts.since, attempts.failures, attempts.avoid) == (30, 0, {"http://two"})


def test_a_request_that_a_server_had_and_lost_waits_anew_for_the_next() -> None:
    attempts = Attempts(since=10, length=2)
    attempts.count("http://one", fault("failed"), 2, 900)
    assert attempts.since == 900
    assert attempts.outage(CallFault("failed", "None answers.")) == "None answers."


def test_a_request_that_fails_everywhere_gives_up() -> None:
    attempts = Attempts(since=0, length=2)
    for number in range(MAX_FAILURES):
        assert attempts.trouble(fault("failed")) is None
        attempts.count(f"http://{number}", fault("failed"), 2, number)
    assert (
        attempts.trouble(fault("failed")) == f"{MAX_FAILURES} engines failed in turn; at last: It is failed."
    )


def test_a_refused_request_gives_up_at_once() -> None:
    assert Attempts(since=0, length=2).trouble(fault("refused")) == "It is refused."
