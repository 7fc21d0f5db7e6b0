"""A long tool loop with `truncation: "auto"`: how many prompts are written for it, live and resumed."""

from engine.request import TokenUsage
from server.generation.hosted_tools_of_response import PendingToolWork, ToolResult
from server.generation.run import Run
from server.model_formats.model_format import Prompt, PromptConversation, PromptTooLong
from server.prompting.turns import first_decoding_spec, first_turn
from server.prompting.write_prompt import ResolvedRequest
from server.protocol.responses.events import first_events
from server.protocol.responses.items import ListedTool, encode_item
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import McpTool
from server.recovery.rebuild_run import _replay
from tests.support.builders import LATER, RESPONSE, SpelledFormat, make_facts
from tests.unit.server.prompting.test_request_parameters import ITEMS, served
from tests.unit.server.recovery.test_compacting_turns import STOP, TURNS, PlayedParser, Recorder

CONTEXT = 1000
MODEL_SAYS = [*range(len(TURNS["first"])), STOP]


class CountingFormat(SpelledFormat):
    """A model that calls its tool in each turn, and the prompts that are written for it."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, conversation: PromptConversation) -> Prompt:
        self.written += 1
        said = b"".join(map(encode_item, conversation.items))
        if len(said) // 4 > CONTEXT:
            raise PromptTooLong(CONTEXT)
        return Prompt(token_ids=self.encode(said.decode(), special=False), stop_ids=frozenset({STOP}))

    def encode(self, text: str, *, special: bool, limit: int | None = None) -> tuple[int, ...]:  # noqa: ARG002
        return tuple(text.encode()[::4])

    def parser(self, _prompt: Prompt) -> PlayedParser:  # type: ignore[override]
        return PlayedParser("first")


def written(turns: int) -> tuple[int, int]:
    """The prompts of a response that is cut off in its turn of this number, and those of its resume."""
    model_format, recorder = CountingFormat(), Recorder()
    model = served(model_format, context_length=CONTEXT)
    resolved = ResolvedRequest(
        tenant="tenant",
        request=CreateResponse(model="m", truncation="auto"),
        tools=[McpTool("city", require_approval="never", listed=[ListedTool("find")])],
        items=ITEMS,
        response=RESPONSE,
        seed=7,
    )
    prepared, builder = first_turn(model, resolved)
    facts = make_facts(prompt_tokens=len(prepared.prompt.token_ids))
    run = Run(facts, first_decoding_spec(model, resolved, prepared))
    recorder.commit([*first_events(facts, facts.echo), *run.start()])
    for turn in range(turns):
        recorder.commit(run.tokens(MODEL_SAYS, LATER), MODEL_SAYS)
        recorder.commit(run.finish("stop", TokenUsage(8, output=len(MODEL_SAYS)), LATER))
        (due,) = tool_work(run).calls
        recorder.commit(run.finish_call(due.index, ToolResult(f"{turn} " * 100), LATER))
        next_turn = builder.next_turn(tool_work(run))
        assert next_turn is not None
        assert next_turn.engine_request is not None
        prompt = next_turn.engine_request.prompt
        recorder.commit(run.next_turn(next_turn.decoding_spec, next_turn.prompt_tokens, LATER))
    log = recorder.commit(run.tokens(MODEL_SAYS[:1], LATER), MODEL_SAYS[:1])
    live, model_format.written = model_format.written, 0

    prepared, builder = first_turn(model, resolved)
    resumed = Run(facts, first_decoding_spec(model, resolved, prepared))
    _, engine_request = _replay(resumed, builder, prepared, log)
    assert engine_request is not None
    assert engine_request.prompt == (*prompt, *MODEL_SAYS[:1])
    assert resumed.output == run.output
    return live, model_format.written


def tool_work(run: Run) -> PendingToolWork:
    work = run.take_tool_work()
    assert work is not None
    return work


def test_a_turn_costs_two_prompts_in_the_mean_however_many_were_before_it_live_and_resumed() -> None:
    for turns in (10, 40, 160):
        live, resumed = written(turns)
        assert resumed == live <= 2 * turns
