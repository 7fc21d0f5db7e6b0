"""A gpt-oss behind the server: its channels are reasoning, messages with a phase, and calls."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from server.embedded_postgres.embedded_server import EmbeddedPostgres
from tests.fix_postgres import temporary_database
from tests.fix_server import Connect
from tests.support.server_process import ServerProcess
from tests.support.tiny_gpt_oss import GREETING, OUTSIDE, QUESTION, WEATHER, tiny_gpt_oss

ANSWER = "Grüß dich, 世界 🙂!"
UNREACHABLE = "http://127.0.0.1:9"
"""Nobody listens there; what would be downloaded would be asked for through it."""


@pytest.fixture(scope="module")
def gpt_oss_server(
    cluster: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Without a network, and without a vocabulary but in its tokenizer."""
    with temporary_database(cluster, "gpt_oss", template=template_database) as name:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("TIKTOKEN_ENCODINGS_BASE", raising=False)
            patch.setenv("TIKTOKEN_RS_CACHE_DIR", str(tmp_path_factory.mktemp("empty")))
            patch.setenv("HTTPS_PROXY", UNREACHABLE)
            settings = {"model": tiny_gpt_oss(), "model_name": "gpt-oss", "torch_threads": 1}
            server = ServerProcess(cluster.url_of(name), settings=settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def ask(server: ServerProcess, connect: Connect, text: Any, **fields: Any) -> Any:
    return connect(server).responses.create(model="gpt-oss", input=text, temperature=0, **fields)


def test_it_thinks_and_answers(gpt_oss_server: ServerProcess, connect: Connect) -> None:
    response = ask(gpt_oss_server, connect, GREETING)
    reasoning, message = response.output
    assert reasoning.content[0].text == "A greeting is wanted."
    assert (message.phase, response.output_text) == ("final_answer", ANSWER)
    assert response.status == "completed"
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens


def test_it_tells_the_messages_of_its_format_when_asked_for_them(
    gpt_oss_server: ServerProcess, connect: Connect
) -> None:
    raw = {"enable_response_messages": True}
    response = ask(gpt_oss_server, connect, GREETING, instructions="Be kind.", extra_body=raw)
    told = [(one["role"], one["content"][0]["text"]) for one in response.input_messages]
    assert [role for role, _ in told] == ["system", "developer", "user"]
    assert "Be kind." in told[1][1]
    assert told[2][1] == GREETING
    text = {"type": "text", "text": "A greeting is wanted."}
    thought, said = response.output_messages
    assert thought == {"role": "assistant", "name": None, "content": [text], "channel": "analysis"}
    assert (said["channel"], said["content"][0]["text"]) == ("final", ANSWER)
    again = connect(gpt_oss_server).responses.retrieve(response.id)
    assert again.to_dict() == response.to_dict()
    chat = connect(gpt_oss_server).chat.completions.create(
        model="gpt-oss",
        messages=[{"role": "user", "content": GREETING}],
        extra_body={"return_token_ids": True},
    )
    assert len(chat.to_dict()["prompt_token_ids"]) == chat.usage.prompt_tokens  # type: ignore[union-attr,arg-type]


def test_a_stream_of_it_gives_the_same(gpt_oss_server: ServerProcess, connect: Connect) -> None:
    events = list(ask(gpt_oss_server, connect, GREETING, stream=True))
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert (thought, said) == ("A greeting is wanted.", ANSWER)
    added = [event.item.type for event in events if event.type == "response.output_item.added"]
    assert added == ["reasoning", "message"]


def test_it_tells_what_it_does_and_calls(gpt_oss_server: ServerProcess, connect: Connect) -> None:
    """It wants a tool that nobody gave it: a model may."""
    reasoning, message, call = ask(gpt_oss_server, connect, QUESTION).output
    assert reasoning.content[0].text == "I need the tool."
    assert (message.phase, message.content[0].text) == ("commentary", "Let me look outside.")
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city":"Ulm"}')


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_it_calls_a_function_and_answers_from_its_output(
    gpt_oss_server: ServerProcess, connect: Connect, streamed: bool, replayed: bool
) -> None:
    def say(**fields: Any) -> Any:
        tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
        made = ask(gpt_oss_server, connect, tools=[tool], stream=streamed, **fields)
        return list(made)[-1].response if streamed else made

    first = say(text=QUESTION)
    thought, plan, call = first.output
    assert (thought.type, plan.phase) == ("reasoning", "commentary")
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city":"Ulm"}')
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": OUTSIDE}
    if replayed:
        before = [item.model_dump(exclude_none=True) for item in first.output]
        second = say(text=[{"role": "user", "content": QUESTION}, *before, output])
    else:
        second = say(text=[output], previous_response_id=first.id)
    assert [item.type for item in second.output] == ["reasoning", "message"]
    assert second.output_text == "In Ulm it is 18 degrees."
    assert second.output[0].content[0].text == "Now I know it."


def test_a_finished_turn_is_remembered_without_its_thoughts(
    gpt_oss_server: ServerProcess, connect: Connect
) -> None:
    first = ask(gpt_oss_server, connect, GREETING)
    again = ask(gpt_oss_server, connect, GREETING, previous_response_id=first.id)
    assert again.output_text == ANSWER
    third = ask(gpt_oss_server, connect, GREETING, previous_response_id=again.id)
    assert third.usage.input_tokens - again.usage.input_tokens < again.usage.output_tokens


@pytest.mark.parametrize("chat", [False, True])
def test_each_token_of_its_text_has_a_probability(
    gpt_oss_server: ServerProcess, connect: Connect, chat: bool
) -> None:
    """In the deltas and in the whole; thoughts and headers have none."""
    if chat:
        client = connect(gpt_oss_server).chat.completions
        asked: Any = {"model": "gpt-oss", "messages": [{"role": "user", "content": GREETING}]}
        asked |= {"temperature": 0, "logprobs": True, "top_logprobs": 2}
        whole = client.create(**asked).choices[0].logprobs.content
        chunks = [chunk.choices[0] for chunk in client.create(**asked, stream=True)]
        pieces = [(chunk.delta.content, chunk.logprobs.content) for chunk in chunks if chunk.logprobs]
    else:
        asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        whole = ask(gpt_oss_server, connect, GREETING, **asked).output[-1].content[0].logprobs
        events = ask(gpt_oss_server, connect, GREETING, stream=True, **asked)
        pieces = [
            (event.delta, event.logprobs) for event in events if event.type.endswith("output_text.delta")
        ]
    assert b"".join(bytes(told.bytes) for told in whole).decode() == ANSWER
    assert all(told.logprob <= 1e-6 and len(told.top_logprobs) == 2 for told in whole)
    assert "".join(text for text, _ in pieces) == ANSWER
    assert [told.token for _, some in pieces for told in some] == [told.token for told in whole]
    for text, some in pieces:
        assert b"".join(bytes(told.bytes) for told in some).decode() == text


def test_codex_is_told_the_efforts_that_the_model_was_trained_on(gpt_oss_server: ServerProcess) -> None:
    (model,) = httpx.get(f"{gpt_oss_server.api}/models?client_version=0.169.0").json()["models"]
    levels = model["supported_reasoning_levels"]
    assert [level["effort"] for level in levels] == ["low", "medium", "high"]
    assert all(level["description"] for level in levels)
    assert model["default_reasoning_level"] == "medium"
