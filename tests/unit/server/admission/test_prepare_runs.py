from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.scripted_engine import Script, ScriptedConfig, ScriptedEngine
from server.admission.prepare_runs import NewRun, ParsedCreate, RunPreparation
from server.caller import Caller
from server.completions.chat import as_response_request
from server.completions.legacy import LegacyPrompt, as_response_requests
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import RegisteredServers
from server.limits.tenant_limits import HistoryReads, QueueLimits
from server.model_formats.model_format import Prompt, PromptConversation
from server.prompting.served_model import LoadedModel
from server.protocol.completions.chat_messages import read_messages
from server.protocol.completions.requests import ChatRequest, TextRequest
from server.protocol.decode import decode
from server.protocol.responses.items import encode_item
from tests.support.builders import SpelledFormat

ENGINE = ScriptedEngine(
    ScriptedConfig(vocabulary=tuple(range(97, 122)), stop_id=0, vocab_size=256, script=Script(length=4)),
    lambda _messages: None,
)


class CountingFormat(SpelledFormat):
    def __init__(self) -> None:
        self.written = 0

    def write(self, conversation: PromptConversation) -> Prompt:
        self.written += 1
        return super().write(conversation)


class CountingDatabase:
    def __init__(self) -> None:
        self.read_times = 0

    def read(self, work: Callable[[Any], Any]) -> Any:
        self.read_times += 1
        return work(None)


@pytest.fixture
def model_format() -> CountingFormat:
    return CountingFormat()


@pytest.fixture
def database() -> CountingDatabase:
    return CountingDatabase()


@pytest.fixture
def prepare(model_format: CountingFormat, database: CountingDatabase) -> Callable[..., list[NewRun]]:
    preparation = RunPreparation(
        LoadedModel(name="model", engine=ENGINE, model_format=model_format),
        database,  # type: ignore[arg-type]
        McpServers(RegisteredServers(), 1),
        HistoryReads(),
        QueueLimits(1, None),
    )

    def prepare(requests: Any, given: Any) -> list[NewRun]:
        create = ParsedCreate(caller=Caller("default", None), choices=requests, input_items=given)
        return preparation.prepare_runs(create)

    return prepare


def test_the_prompt_of_all_choices_of_a_chat_is_written_once(
    model_format: CountingFormat, database: CountingDatabase, prepare: Callable[..., list[NewRun]]
) -> None:
    body = b'{"model": "model", "n": 16, "store": true, "messages": [{"role": "user", "content": "Hello"}]}'
    wanted = decode(body, ChatRequest)
    requests = [as_response_request(wanted, place) for place in range(16)]
    prepared = prepare(requests, read_messages(wanted.messages))
    assert model_format.written == 1
    assert database.read_times == 0
    assert [new.resolved.request.choice for new in prepared] == list(range(16))  # type: ignore[attr-defined]
    assert len({new.response for new in prepared}) == 16
    assert [new.prepared.engine_request.request_id for new in prepared] == [
        new.response.hex for new in prepared
    ]
    assert len({new.prepared.engine_request.sampling.seed for new in prepared}) == 16
    assert len({item.id for new in prepared for item in new.resolved_input.new}) == 16
    assert [new.turns.response for new in prepared] == [new.response for new in prepared]
    assert [new.turns.resolved.seed for new in prepared] == [
        new.prepared.engine_request.sampling.seed for new in prepared
    ]


def test_each_choice_is_prepared_as_if_it_were_alone(prepare: Callable[..., list[NewRun]]) -> None:
    body = b"""{"model": "model", "n": 3, "seed": 7, "temperature": 0.5, "logprobs": true, "top_logprobs": 2,
        "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}]}"""
    wanted = decode(body, ChatRequest)
    requests = [as_response_request(wanted, place) for place in range(3)]
    given = read_messages(wanted.messages)
    together = prepare(requests, given)
    assert [new.prepared.engine_request.sampling.seed for new in together] == [7, 8, 9]
    for new, request in zip(together, requests, strict=True):
        (alone,) = prepare([request], given)
        assert new.resolved.request == alone.resolved.request
        assert new.prepared.echo == alone.prepared.echo
        # the room for log probabilities is shared by all choices of a request
        unlike = {
            "request_id": alone.prepared.engine_request.request_id,
            "max_tokens": alone.prepared.engine_request.max_tokens,
        }
        assert replace(new.prepared.engine_request, **unlike) == alone.prepared.engine_request  # type: ignore[arg-type]
        assert [type(item) for item in new.resolved_input.new] == [
            type(item) for item in alone.resolved_input.new
        ]


def test_a_run_keeps_the_bytes_of_its_input_if_it_may_have_a_further_turn(
    prepare: Callable[..., list[NewRun]],
) -> None:
    body = b'{"model": "model", "messages": [{"role": "user", "content": "Hello"}]}'
    wanted = decode(body, ChatRequest)
    (new,) = prepare([as_response_request(wanted, 0)], read_messages(wanted.messages))
    assert new.retained_input_bytes == 0
    going_on = replace(new, turns=replace(new.turns, may_have_next_turn=True))
    assert (
        going_on.retained_input_bytes == sum(len(encode_item(item)) for item in new.resolved_input.items) > 0
    )


def test_completions_refer_to_nothing_that_is_stored_and_read_nothing(
    database: CountingDatabase, prepare: Callable[..., list[NewRun]]
) -> None:
    wanted = TextRequest(model="model", prompt=[[1], [2, 3]], n=2, prompt_logprobs=1)
    prompts = [LegacyPrompt("a", (1,), "a"), LegacyPrompt("bc", (2, 3), "b")]
    requests = as_response_requests(wanted, prompts)
    requests = [msgspec.structs.replace(one, enable_response_messages=None) for one in requests]
    prepared = prepare(requests, [])
    assert database.read_times == 0
    assert [new.prepared.engine_request.prompt for new in prepared] == [(1,), (1,), (2, 3), (2, 3)]
    assert [new.prepared.engine_request.prompt_logprobs for new in prepared] == [1, None, 1, None]
    assert len({new.response for new in prepared}) == 4
