"""/v1/completions through the official client: a model goes on with a text, which nothing is put around."""

from typing import Any

import httpx
import psycopg
import pytest
from openai import OpenAI
from openai.types import Completion
from pydantic import TypeAdapter

from tests.acceptance.error_object import check_error
from tests.acceptance.traces import tables_with
from tests.fix_server import Connect
from tests.support.server_process import MODEL, ServerProcess

_WHOLE: TypeAdapter[Completion] = TypeAdapter(Completion)
CHAT = "<|im_start|>user\nCount to 3<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def client(demo_server: ServerProcess, connect: Connect) -> OpenAI:
    return connect(demo_server)


def ask(client: OpenAI, prompt: Any = CHAT, **fields: Any) -> Any:
    extra = {
        name: fields.pop(name)
        for name in ("return_token_ids", "prompt_logprobs", "structured_outputs", "response_format")
        if name in fields
    }
    asked: dict[str, Any] = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 40, **fields}
    return client.completions.create(**asked, extra_body=extra)


def post(server: ServerProcess, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": "Hello", **fields}
    return httpx.post(f"{server.api}/completions", json=body, timeout=60)


def streamed(client: OpenAI, prompt: Any = CHAT, **fields: Any) -> list[Any]:
    return list(ask(client, prompt, stream=True, **fields))


def joined(chunks: list[Any], index: int = 0) -> str:
    return "".join(one.text for chunk in chunks for one in chunk.choices if one.index == index)


def test_text_is_gone_on_with_as_it_stands(client: OpenAI) -> None:
    told = ask(client)
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Count to 3"}], temperature=0
    )
    assert told.choices[0].text == chat.choices[0].message.content
    assert told.choices[0].finish_reason == "stop"
    assert (told.object, told.id[:5], told.usage.prompt_tokens) == (
        "text_completion",
        "cmpl-",
        chat.usage.prompt_tokens if chat.usage else 0,
    )


def test_answer_is_one_of_openais_and_has_sixteen_tokens_unless_more_are_asked_for(
    scripted_server: ServerProcess,
) -> None:
    whole = _WHOLE.validate_json(post(scripted_server).content)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16


def test_streamed_and_whole_answers_of_one_seed_are_equal(client: OpenAI) -> None:
    asked: dict[str, Any] = {"n": 3, "seed": 4, "temperature": 2, "prompt": "Once"}
    whole = ask(client, **asked)
    chunks = streamed(client, **asked, stream_options={"include_usage": True})
    assert len({one.text for one in whole.choices}) == 3
    assert [joined(chunks, index) for index in range(3)] == [one.text for one in whole.choices]
    ends = {one.index: one.finish_reason for chunk in chunks for one in chunk.choices if one.finish_reason}
    assert ends == {one.index: one.finish_reason for one in whole.choices}
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-1].choices == []


def test_prompts_are_texts_or_tokens_alone_or_many(client: OpenAI, demo_server: ServerProcess) -> None:
    other = CHAT.replace("3", "5")
    tokens = [
        httpx.post(f"{demo_server.url}/tokenize", json={"prompt": text}).json()["tokens"]
        for text in (CHAT, other)
    ]
    alone = [ask(client, prompt).choices[0].text for prompt in (CHAT, other)]
    assert alone[0] != alone[1]
    assert ask(client, tokens[0]).choices[0].text == alone[0]
    for prompts in ([CHAT, other], tokens):
        told = ask(client, prompts, n=2, seed=1)
        assert [one.text for one in told.choices] == [alone[0]] * 2 + [alone[1]] * 2
        assert [one.index for one in told.choices] == [0, 1, 2, 3]
        assert told.usage.prompt_tokens == sum(map(len, tokens))


def test_logprobs_have_the_legacy_shape(client: OpenAI) -> None:
    told = ask(client, logprobs=2).choices[0]
    got = told.logprobs
    assert "".join(got.tokens) == told.text
    assert [told.text[at:].startswith(token) for at, token in zip(got.text_offset, got.tokens, strict=True)]
    for token, logprob, likely in zip(got.tokens, got.token_logprobs, got.top_logprobs, strict=True):
        assert likely[token] == logprob
        assert 2 <= len(likely) <= 3
    chunks = [one for chunk in streamed(client, logprobs=2) for one in chunk.choices if one.logprobs]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [more for one in chunks for more in getattr(one.logprobs, name)] == getattr(got, name)


def test_echo_puts_the_prompt_before_its_answer_with_its_logprobs(client: OpenAI) -> None:
    alone = ask(client, logprobs=1).choices[0]
    told = ask(client, echo=True, logprobs=1).choices[0]
    assert told.text == CHAT + alone.text
    assert "".join(told.logprobs.tokens) == told.text
    assert told.logprobs.text_offset[0] == 0
    assert told.logprobs.token_logprobs[0] is None
    assert told.logprobs.top_logprobs[0] is None
    own = len(alone.logprobs.tokens)
    assert told.logprobs.token_logprobs[-own:] == alone.logprobs.token_logprobs
    assert all(one <= 0 for one in told.logprobs.token_logprobs[1:])
    assert joined(streamed(client, echo=True)) == told.text


def test_prompt_is_scored_without_an_answer(client: OpenAI) -> None:
    told = ask(client, echo=True, logprobs=0, max_tokens=0)
    assert (told.choices[0].text, told.choices[0].finish_reason) == (CHAT, "length")
    assert told.usage.completion_tokens == 0
    assert len(told.choices[0].logprobs.tokens) == told.usage.prompt_tokens


def test_tokens_are_told_whole_and_streamed(client: OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    whole = ask(client, return_token_ids=True, prompt_logprobs=1).choices[0]
    assert len(whole.prompt_logprobs) == len(whole.prompt_token_ids)
    chunks = streamed(client, return_token_ids=True, stream_options=options)[:-1]
    assert chunks[0].choices[0].prompt_token_ids == whole.prompt_token_ids
    assert [token for chunk in chunks for token in chunk.choices[0].token_ids] == whole.token_ids
    assert [chunk.usage.completion_tokens for chunk in chunks][-1] == len(whole.token_ids)


def test_grammars_hold_and_stop_strings_cut(client: OpenAI) -> None:
    assert ask(client, structured_outputs={"choice": ["maybe"]}).choices[0].text == "maybe"
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {**schema, "additionalProperties": False}},
    }
    assert ask(client, response_format=form).choices[0].text.replace(" ", "") == '{"a":1}'
    cut = ask(client, stop=", 3").choices[0]
    assert (cut.text, cut.finish_reason) == ("1, 2", "stop")


def test_nothing_of_a_text_is_kept(scripted_server: ServerProcess, scripted_database: str) -> None:
    canary = "plesiosaur-in-text"
    assert post(scripted_server, prompt=canary, echo=True).json()["choices"][0]["text"].startswith(canary)
    with psycopg.connect(scripted_database, autocommit=True) as connection:
        assert tables_with(connection, canary) == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [[0], [10**9]]}, "prompt[1]"),
    ({"prompt": ["a"] * 50, "n": 3}, "prompt"),
    ({"suffix": "."}, "suffix"),
    ({"best_of": 3, "stream": True}, "best_of"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"stream": True, "echo": True, "logprobs": 1}, "echo"),
    ({"use_beam_search": True, "best_of": 2}, "best_of"),
    ({"use_beam_search": True, "logit_bias": {"5": 1}}, "logit_bias"),
    ({"use_beam_search": True, "echo": True, "logprobs": 1}, "use_beam_search"),
    ({"bad_words": [""]}, "bad_words[0]"),
]


@pytest.mark.parametrize(
    ("fields", "param"), WRONG, ids=[f"{param}-{n}" for n, (_, param) in enumerate(WRONG)]
)
def test_what_is_wrong_is_refused_by_name(
    scripted_server: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    error = check_error(post(scripted_server, **fields), 400, "invalid_request_error")
    assert error["param"] == param


def test_request_that_is_sent_again_has_the_answers_of_the_first_or_is_told_that_they_are_gone(
    scripted_server: ServerProcess,
) -> None:
    headers = {"Idempotency-Key": "text"}
    body = {"model": MODEL, "prompt": ["a", "b"]}
    first, second = (
        httpx.post(f"{scripted_server.api}/completions", json=body, headers=headers) for _ in range(2)
    )
    assert first.status_code == 200
    check_error(second, 409, "invalid_request_error")
