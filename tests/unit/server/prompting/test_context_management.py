"""A run that begins with a compaction, ended at every place."""

from collections.abc import Callable

import pytest

from engine.request import TokenUsage
from server.generation.output_decoding import CompactionSpec, DecodingSpec
from server.generation.run import Run
from server.model_formats.model_format import Prompt, PromptConversation
from server.prompting.context_management import _text_only, prepare_with_compaction
from server.prompting.engine_request import prepare
from server.prompting.write_prompt import ResolvedRequest
from server.protocol.responses.events import Event, first_events
from server.protocol.responses.items import Compaction, FunctionCallOutput, InputText, Message, PreparedImage
from server.protocol.responses.request import ContextManagement, CreateResponse
from tests.support.builders import LATER, RESPONSE, SpelledParser, make_facts, rendered, say, think
from tests.support.event_order import EventOrder
from tests.unit.server.prompting.test_request_parameters import DEMO, ITEMS, served

SUMMED = TokenUsage(prompt=50, cached=4, output=9)
ANSWERED = TokenUsage(prompt=10, cached=1, output=5)


def seal(place: str, written: str) -> str:
    return f"{place}: {written}"


def make_run(*, by_model: bool = True, answers: bool = True) -> Run:
    return Run(
        make_facts(), DecodingSpec(SpelledParser(), compaction=CompactionSpec(seal, by_model, answers))
    )


STEPS: list[Callable[[Run], list[Event]]] = [
    lambda run: first_events(run.facts, run.facts.echo) + run.start(),
    lambda run: run.tokens(think("Hm.") + say("They "), LATER),
    lambda run: run.tokens(say("met."), LATER),
    lambda run: run.finish("length", SUMMED, LATER),
    lambda run: run.next_turn(DecodingSpec(SpelledParser()), 10, LATER),
    lambda run: run.tokens(say("Hi!"), LATER),
    lambda run: run.finish("stop", ANSWERED, LATER),
]


def test_summary_is_sealed_and_counted_and_told_to_nobody() -> None:
    run = make_run()
    events = [event for step in STEPS for event in step(run)]
    told = rendered(RESPONSE, events)
    EventOrder().take_all(told)
    assert run.output[0] == Compaction(run.output[0].id, "completed", f"{run.output[0].id}: They met.")
    assert [event for event in told if "They met" in str(event.get("delta"))] == []
    assert run.ending is not None
    assert (run.ending.input_tokens, run.ending.cached_tokens) == (60, 5)
    assert (run.ending.output_tokens, run.ending.reasoning_tokens) == (14, 3)


@pytest.mark.parametrize("steps", range(1, len(STEPS)))
@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_run_that_ends_early_closes_what_it_had_begun(steps: int, status: str) -> None:
    run = make_run()
    events = [event for step in STEPS[:steps] for event in step(run)]
    events += run.cancel(LATER) if status == "cancelled" else run.fail("server_error", "Why.", LATER)
    EventOrder().take_all(rendered(RESPONSE, events))
    assert run.ending is not None
    assert run.ending.status == status
    assert run.output[0].status == ("completed" if steps > 3 else "incomplete")


@pytest.mark.parametrize("by_model", [True, False])
def test_run_that_does_not_answer_is_over_after_its_compaction(by_model: bool) -> None:
    run = make_run(by_model=by_model, answers=False)
    events = first_events(run.facts, run.facts.echo) + run.start() + run.finish("stop", SUMMED, LATER)
    EventOrder().take_all(rendered(RESPONSE, events))
    assert [type(item) for item in run.output] == [Compaction]


def test_short_context_is_told_before_the_first_token_of_the_answer() -> None:
    run = make_run(by_model=False)
    events = (
        first_events(run.facts, run.facts.echo)
        + run.start()
        + run.tokens(say("Hi!"), LATER)
        + run.finish("stop", ANSWERED, LATER)
    )
    order = EventOrder()
    order.take_all(rendered(RESPONSE, events))
    assert [item["type"] for item in order.items] == ["compaction", "message"]
    assert order.items[0]["encrypted_content"] == f"{order.items[0]['id']}: "


def test_a_sealed_context_has_no_bytes_of_pictures() -> None:
    image = PreparedImage(data=b"the bytes", digest=b"digest", text="<image>", tokens=1)
    message = Message("msg_1", "completed", "user", [InputText("Look: "), image])
    output = FunctionCallOutput("fco_1", "completed", "call_1", [image])
    assert _text_only(message) == Message("msg_1", "completed", "user", [InputText("Look: [An image]")])
    assert _text_only(output) == FunctionCallOutput("fco_1", "completed", "call_1", [InputText("[An image]")])


@pytest.mark.parametrize("limit", [None, 7])
def test_a_context_below_the_threshold_is_written_once(
    monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    settings = [ContextManagement("compaction", 1000)]
    request = CreateResponse(model="m", context_management=settings, truncate_prompt_tokens=limit)
    resolved = ResolvedRequest(tenant="t", request=request, tools=[], items=ITEMS, response=RESPONSE, seed=7)
    plain = prepare(served(), resolved)
    written: list[PromptConversation] = []
    write = type(DEMO).write

    def counted(model_format: object, conversation: PromptConversation) -> Prompt:
        written.append(conversation)
        return write(model_format, conversation)  # type: ignore[arg-type]

    monkeypatch.setattr(type(DEMO), "write", counted)
    assert prepare_with_compaction(served(), resolved, settings) == plain
    assert len(written) == 1
