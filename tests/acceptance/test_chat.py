"""Chat Completions through the official client: the same answers as responses, in the other shape."""

from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from tests.acceptance.error_object import check_error
from tests.fix_server import Connect
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
_CHUNK: TypeAdapter[ChatCompletionChunk] = TypeAdapter(ChatCompletionChunk)
_WHOLE: TypeAdapter[ChatCompletion] = TypeAdapter(ChatCompletion)


@pytest.fixture
def client(scripted_server: ServerProcess, connect: Connect) -> OpenAI:
    return connect(scripted_server)


def post(server: ServerProcess, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": HELLO, **fields}
    return httpx.post(f"{server.api}/chat/completions", json=body, timeout=60)


def test_completion_is_one_of_openais(scripted_server: ServerProcess) -> None:
    answer = post(scripted_server)
    whole = _WHOLE.validate_json(answer.content)
    assert whole.id.startswith("chatcmpl-")
    assert (whole.object, whole.model) == ("chat.completion", MODEL)
    (choice,) = whole.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "stop", "assistant")
    assert choice.message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24


def test_streamed_and_whole_answers_of_one_seed_are_equal(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": HELLO, "seed": 7, "temperature": 1}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        _CHUNK.validate_json(chunk.model_dump_json())
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_ends_with_done_and_tells_usage_only_if_asked(scripted_server: ServerProcess) -> None:
    raw = post(scripted_server, stream=True).text
    assert raw.endswith("data: [DONE]\n\n")
    assert "event:" not in raw
    assert '"usage"' not in raw


def test_four_choices_are_distinct_and_come_from_one_prefill(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": HELLO, "n": 4, "seed": 3, "temperature": 1}
    whole = client.chat.completions.create(**ask)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 4 * 24
    streamed: dict[int, str] = {}
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert [streamed[index] for index in range(4)] == texts


def test_limit_stop_string_and_logprobs_are_told(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 0}
    whole = client.chat.completions.create(**ask, max_tokens=5, logprobs=True, top_logprobs=2)
    choice = whole.choices[0]
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 5
    assert "".join(one.token for one in choice.logprobs.content) == choice.message.content
    assert all(len(one.top_logprobs) == 2 for one in choice.logprobs.content)
    text = client.chat.completions.create(**ask).choices[0].message.content or ""
    stop = text[6:9]
    cut = client.chat.completions.create(**ask, stop=stop).choices[0]
    assert (cut.message.content, cut.finish_reason) == (text[: text.index(stop)], "stop")
    streamed = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**ask, stop=stop, stream=True)
    )
    assert streamed == cut.message.content


def test_every_role_and_part_is_taken(client: OpenAI) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Very."}]},
        {
            "role": "user",
            "name": "me",
            "content": [
                {"type": "text", "text": "Look: "},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "assistant", "content": "Done.", "refusal": None},
        {"role": "user", "content": "Thanks"},
    ]
    assert client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": ["f"]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"use_beam_search": True, "n": 11}, "n"),
    ({"use_beam_search": True, "stop": ["x"]}, "stop"),
    ({"use_beam_search": True, "frequency_penalty": 1}, "frequency_penalty"),
    ({"use_beam_search": True, "response_format": {"type": "json_object"}}, "use_beam_search"),
    ({"length_penalty": 11}, "length_penalty"),
    ({"prompt_logprobs": 2, "stream": True}, "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"modalities": ["audio"]}, "modalities"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[param for _, param in WRONG])
def test_what_is_wrong_is_refused_by_name(
    scripted_server: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    error = check_error(post(scripted_server, **fields), 400, "invalid_request_error")
    assert error["param"] == param


def test_unknown_model_is_a_404(scripted_server: ServerProcess) -> None:
    check_error(post(scripted_server, model="other"), 404, "invalid_request_error")


def test_client_that_leaves_frees_the_engine(paced_server: ServerProcess, connect: Connect) -> None:
    client = connect(paced_server)
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, n=2)
    for _ in range(6):
        next(stream)
    stream.close()
    ready = f"{paced_server.url}/health/ready"
    eventually(lambda: httpx.get(ready).json().get("running", 0) == 0)


def test_choice_is_one_of_those_given(demo_server: ServerProcess, connect: Connect) -> None:
    client = connect(demo_server)
    for word in ("yes", "no", "it is"):
        answer = client.chat.completions.create(
            model=MODEL, messages=HELLO, extra_body={"structured_outputs": {"choice": [word]}}
        )
        assert answer.choices[0].message.content == word


def test_answer_to_a_conversation_is_the_one_that_a_response_gives(
    demo_server: ServerProcess, connect: Connect
) -> None:
    client = connect(demo_server)
    told: list[Any] = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello, Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    chat = client.chat.completions.create(model=MODEL, messages=told, temperature=0)
    response = client.responses.create(model=MODEL, input=told, temperature=0)
    assert chat.choices[0].message.content == response.output_text
