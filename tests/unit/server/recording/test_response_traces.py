from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.request import TokenUsage
from server.generation.output_decoding import no_decoding
from server.generation.run import Run
from server.recording.response_traces import ResponseTraces
from server.tracing.spans import Value
from tests.support.builders import CREATED, RESPONSE, make_echo, make_facts

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
OWN = f"00-{'a' * 32}-{RESPONSE.int & (2**64 - 1):016x}-01"


@dataclass
class _Span:
    name: str
    parent: str | None
    span_id: int | None
    attributes: dict[str, Value | None]
    trace_parent: str = "00-" + "a" * 32 + "-" + "c" * 16 + "-01"
    error: str | None = None
    ended: bool = False

    def end(self, attributes: object = None, *, error: str | None = None, **_times: object) -> None:
        del attributes
        self.ended, self.error = True, error


@dataclass
class _Tracer:
    spans: list[_Span] = field(default_factory=list)

    def begin(
        self,
        name: str,
        *,
        parent: str | None = None,
        attributes: Mapping[str, Value | None] | None = None,
        span_id: int | None = None,
        **_more: object,
    ) -> _Span:
        self.spans.append(_Span(name, parent, span_id, dict(attributes or {})))
        return self.spans[-1]

    def close(self) -> None:
        pass

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


def traced_run(*, background: bool = False, attempt: int = 1, parent: str | None = PARENT) -> Run:
    echo = make_echo(background=background, model="m")
    facts = make_facts(echo=echo, attempt=attempt, request_id="req_1", trace_parent=parent)
    return Run(facts, no_decoding())


def observe(traces: ResponseTraces, run: Run, *, has_tokens: bool = False, is_last: bool = False) -> None:
    traces.observe(run, has_tokens, is_last, commit_seconds=0.001)


def test_a_response_is_its_turn_and_its_commit_under_a_span_of_its_own_id() -> None:
    tracer, run = _Tracer(), traced_run()
    traces = ResponseTraces(tracer)
    traces.begin(run.facts)
    observe(traces, run)
    observe(traces, run, has_tokens=True)
    run.finish("stop", TokenUsage(3, 0, 2), CREATED)
    observe(traces, run, is_last=True)
    assert tracer.names == ["prefill", "decode", "commit", "chat m"]
    *parts, response = tracer.spans
    assert {part.parent for part in parts} == {OWN}
    assert (response.parent, f"{response.span_id:016x}") == (PARENT, OWN[36:52])
    assert response.attributes["gen_ai.usage.output_tokens"] == 2
    assert all(span.ended and span.error is None for span in tracer.spans)
    assert traces.trace_parent_of(RESPONSE.hex) is None


def test_who_waited_in_the_database_has_a_span_for_that_once() -> None:
    tracer = _Tracer()
    traces = ResponseTraces(tracer)
    traces.begin(traced_run(background=True).facts)
    traces.begin(traced_run(background=True, attempt=2).facts)
    assert tracer.names == ["queue"]


def test_a_response_that_fails_has_its_error_and_one_that_is_released_no_span() -> None:
    tracer, run = _Tracer(), traced_run()
    traces = ResponseTraces(tracer)
    traces.begin(run.facts)
    run.fail("server_error", "It failed.", CREATED)
    observe(traces, run, is_last=True)
    assert (tracer.spans[-1].name, tracer.spans[-1].error) == ("chat m", "server_error")
    tracer.spans.clear()
    left = traced_run()
    traces.begin(left.facts)
    observe(traces, left, is_last=True)
    assert tracer.names == ["prefill"]


def test_calls_of_tools_and_engines_are_children_of_the_response() -> None:
    tracer, run = _Tracer(), traced_run()
    traces = ResponseTraces(tracer)
    assert traces.begin_tool(RESPONSE, "notes", "find") is None
    traces.begin(run.facts)
    assert traces.begin_tool(RESPONSE, "notes", "find") is tracer.spans[-1]
    assert (tracer.spans[-1].name, tracer.spans[-1].parent) == ("execute_tool find", OWN)
    assert traces.trace_parent_of(f"{RESPONSE.hex}.3") == OWN


def test_without_a_tracer_or_a_sampled_request_nothing_is_kept() -> None:
    tracer = _Tracer()
    for traces, run in ((ResponseTraces(), traced_run()), (ResponseTraces(tracer), traced_run(parent=None))):
        traces.begin(run.facts)
        observe(traces, run, is_last=True)
        assert traces.trace_parent_of(RESPONSE.hex) is None
    assert tracer.spans == []
