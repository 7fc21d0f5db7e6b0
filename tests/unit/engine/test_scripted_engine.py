import subprocess
import sys

import pytest

from engine.request import Failed, FailureCode, Outbound
from engine.scripted_engine import Fault, Script, ScriptedConfig
from tests.support.engines import Bench, Outcome, make_prompt, make_request, start_scripted

STOP = frozenset({0})


def together(bench: Bench, *names: str) -> list[Outcome]:
    """Runs requests of these names in the same steps."""
    bench.engine.set_paused(True)
    for name in names:
        bench.engine.submit(make_request(name, make_prompt(20)))
    bench.engine.set_paused(False)
    return [bench.listener.outcome(name) for name in names]


def code_of(outcome: Outcome) -> FailureCode | None:
    return outcome.last.code if isinstance(outcome.last, Failed) else None


def test_torch_is_not_imported_with_the_scripted_engine() -> None:
    imports = "import sys, engine.request, engine.scripted_engine"
    code = f"{imports}; print({{'torch', 'transformers'}} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_a_drawn_answer_has_the_length_of_the_script_and_stops() -> None:
    bench = start_scripted(vocabulary=(3, 5, 8), script=Script(length=12))
    (outcome,) = bench.run(make_request("a", make_prompt(20), 50, stop_ids=STOP))
    assert len(outcome.tokens) == 12
    assert outcome.tokens[-1] == 0
    assert set(outcome.tokens[:-1]) <= {3, 5, 8}
    bench.engine.close(drain=True)


def test_a_drawn_answer_ends_where_it_would_have_when_it_is_cut_at_any_token() -> None:
    bench = start_scripted(script=Script(length=12))
    prompt = make_prompt(20)
    (whole,) = bench.run(make_request("a", prompt, 50, stop_ids=STOP, temperature=1.0, seed=4))
    rests = [
        make_request(str(n), prompt + whole.tokens[:n], 50, stop_ids=STOP, temperature=1.0, seed=4)
        for n in range(12)
    ]
    for n, outcome in enumerate(bench.run(*rests)):
        assert outcome.tokens == whole.tokens[n:]
    bench.engine.close(drain=True)


def test_a_given_answer_is_given_and_continued() -> None:
    answer = (11, 12, 13, 11, 12, 0)
    bench = start_scripted(scripts=lambda request: Script(tokens=answer) if 9 in request.prompt else None)
    (outcome,) = bench.run(make_request("a", [9, 1, 2], 50, stop_ids=STOP))
    assert outcome.tokens == list(answer)
    for n in range(1, 6):
        (rest,) = bench.run(make_request(str(n), [9, 1, 2, *answer[:n]], 50, stop_ids=STOP))
        assert rest.tokens == list(answer[n:])
    bench.engine.close(drain=True)


@pytest.mark.parametrize("code", ["engine_error", "out_of_memory", "overloaded"])
def test_a_request_fails_at_the_ordered_token(code: FailureCode) -> None:
    bench = start_scripted()
    bench.engine.order_fault(Fault(kind="fail", at_token=3, code=code))  # type: ignore[attr-defined]
    failing, fine = bench.run(make_request("a", make_prompt(20)), make_request("b", make_prompt(20)))
    assert isinstance(failing.last, Failed)
    assert failing.last.code == code
    assert len(failing.tokens) == 3
    assert len(fine.tokens) == 16
    bench.engine.close(drain=True)


def test_the_engine_dies_at_the_ordered_token() -> None:
    bench = start_scripted(scripts=lambda _request: Script(fault=Fault(kind="die", at_token=2)))
    (outcome,) = bench.run(make_request("a", make_prompt(20)))
    assert isinstance(outcome.last, Failed)
    assert outcome.last.code == "engine_dead"
    assert len(outcome.tokens) == 2
    assert not bench.engine.stats().alive


def test_a_step_that_fails_ends_all_its_requests_and_no_other() -> None:
    script = Script(fault=Fault(kind="raise", at_token=3))
    bench = start_scripted(scripts=lambda request: script if request.request_id == "a" else None)
    outcomes = together(bench, "a", "b")
    (after,) = bench.run(make_request("c", make_prompt(20)))
    assert [code_of(outcome) for outcome in outcomes] == ["engine_error"] * 2
    assert len(outcomes[0].tokens) == 3
    assert len(after.tokens) == 16
    bench.engine.close(drain=True)


def test_a_step_without_memory_makes_one_request_wait_and_costs_none_its_answer() -> None:
    script = Script(fault=Fault(kind="oom", at_token=3))
    bench = start_scripted(scripts=lambda request: script if request.request_id == "a" else None)
    outcomes = together(bench, "a", "b", "c")
    assert [code_of(outcome) for outcome in outcomes] == [None, None, None]
    bench.engine.close(drain=True)


def test_the_engine_hangs_at_the_ordered_token_until_it_is_resumed() -> None:
    bench = start_scripted()
    engine = bench.engine
    (expected,) = bench.run(make_request("expected", make_prompt(20)))
    engine.order_fault(Fault(kind="hang", at_token=2))  # type: ignore[attr-defined]
    engine.submit(make_request("a", make_prompt(20)))
    assert engine.hanging.wait(30)  # type: ignore[attr-defined]
    assert len(bench.listener.of("a")) == 2
    assert engine.stats().alive
    engine.resume()  # type: ignore[attr-defined]
    assert bench.listener.outcome("a").tokens == expected.tokens
    engine.close(drain=True)


def test_a_hanging_engine_can_be_closed() -> None:
    bench = start_scripted()
    bench.engine.order_fault(Fault(kind="hang"))  # type: ignore[attr-defined]
    bench.engine.submit(make_request("a", make_prompt(20)))
    assert bench.engine.hanging.wait(30)  # type: ignore[attr-defined]
    bench.engine.close(drain=False)
    bench.listener.outcome("a")


def test_close_does_not_wait_for_the_pace() -> None:
    bench = start_scripted(step_seconds=3600.0)

    def nothing_came(_message: Outbound) -> None:
        raise AssertionError("a step of an hour ended")

    bench.listener.when_told = nothing_came
    bench.engine.submit(make_request("a", make_prompt(20), 50))
    bench.listener.when_told = lambda _message: None
    bench.engine.close(drain=False)
    assert bench.listener.outcome("a").last.usage.prompt == 20


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"vocabulary": ()}, "vocabulary"),
        ({"stop_id": 1}, "stop id"),
        ({"vocabulary": (200,)}, "below vocab_size"),
        ({"script": Script(length=0)}, "length"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused(settings: dict[str, object], word: str) -> None:
    good = {"vocabulary": (1, 2), "stop_id": 0, "vocab_size": 97}
    with pytest.raises(ValueError, match=word):
        ScriptedConfig(**{**good, **settings})  # type: ignore[arg-type]
