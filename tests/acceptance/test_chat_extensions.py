"""What vLLM's Chat Completions have beyond OpenAI's: tokens, the prompt's likelihood, echo, usage so far."""

import os
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from tests.fix_server import Connect
from tests.support.server_process import ENGINE_URL, MODEL, REPOSITORY, ServerProcess

HELLO: list[Any] = [{"role": "user", "content": "Count to 3"}]
BEGUN: list[Any] = [*HELLO, {"role": "assistant", "content": "1, 2"}]
GOES_ON: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(REPOSITORY / "demo" / "holdfast-demo" / "tokenizer.json"))


@pytest.fixture
def client(demo_server: ServerProcess, connect: Connect) -> OpenAI:
    return connect(demo_server)


def ask(client: OpenAI, messages: list[Any], *, stream: bool = False, **extra: Any) -> Any:
    named = {name: extra.pop(name) for name in ("stream_options", "store", "n", "seed") if name in extra}
    return client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, stream=stream, extra_body=extra, **named
    )


def test_a_thought_without_an_answer_is_continued(client: OpenAI, tokenizer: Tokenizer) -> None:
    begun: list[Any] = [*HELLO, {"role": "assistant", "reasoning_content": "The user wants", "content": None}]
    told = ask(client, begun, return_token_ids=True, **GOES_ON)
    prompt = tokenizer.decode(told.prompt_token_ids, skip_special_tokens=False)
    assert prompt.endswith("The user wants")
    assert told.choices[0].message.reasoning_content


def test_tokens_are_those_of_the_prompt_and_of_the_answer(client: OpenAI, tokenizer: Tokenizer) -> None:
    told = ask(client, HELLO, return_token_ids=True, store=True, n=2)
    prompt = tokenizer.decode(told.prompt_token_ids, skip_special_tokens=False)
    assert "Count to 3" in prompt
    assert len(told.prompt_token_ids) == told.usage.prompt_tokens
    for choice in told.choices:
        assert tokenizer.decode(choice.token_ids) == choice.message.content
    assert sum(len(choice.token_ids) for choice in told.choices) == told.usage.completion_tokens
    found = client.chat.completions.retrieve(told.id)
    assert found.model_dump()["prompt_token_ids"] == told.prompt_token_ids
    assert found.choices == told.choices


def test_a_prediction_is_counted_and_changes_no_word(client: OpenAI) -> None:
    text = "Repeat: the red fox jumps over the lazy dog near the old river"
    said: list[Any] = [{"role": "user", "content": text}]
    plain = ask(client, said)
    answer = plain.choices[0].message.content
    prediction: Any = {"type": "content", "content": [{"type": "text", "text": answer + " and sleeps"}]}
    found = ask(client, said, prediction=prediction, store=True)
    *_, last = ask(client, said, prediction=prediction, stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens_details == found.usage.completion_tokens_details
    assert found.choices[0].message == plain.choices[0].message
    details = found.usage.completion_tokens_details
    assert details.accepted_prediction_tokens >= found.usage.completion_tokens - 2
    assert details.rejected_prediction_tokens > 0
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert client.chat.completions.retrieve(found.id).usage == found.usage


def test_a_stop_string_within_a_prediction_ends_the_answer_there(client: OpenAI) -> None:
    said: list[Any] = [{"role": "user", "content": "Repeat: the red fox jumps over the lazy dog"}]
    prediction: Any = {"type": "content", "content": ask(client, said).choices[0].message.content}
    plain, found = ask(client, said, stop=" over"), ask(client, said, stop=" over", prediction=prediction)
    assert found.choices == plain.choices
    assert found.choices[0].message.content.endswith("jumps")
    assert found.usage.completion_tokens == plain.usage.completion_tokens
    assert found.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_streamed_tokens_and_usage_come_with_what_they_say(client: OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    whole = ask(client, HELLO, return_token_ids=True)
    (first, *rest, last) = ask(client, HELLO, stream=True, return_token_ids=True, stream_options=options)
    assert first.prompt_token_ids == whole.prompt_token_ids
    assert not any(hasattr(chunk, "prompt_token_ids") for chunk in rest)
    came: list[int] = []
    for chunk in (first, *rest):
        came += chunk.choices[0].token_ids
        assert chunk.usage.completion_tokens == len(came)
        assert chunk.usage.total_tokens == len(came) + len(first.prompt_token_ids)
    assert came == whole.choices[0].token_ids
    assert last.usage.total_tokens == whole.usage.total_tokens


def test_usage_so_far_is_told_only_where_usage_is(client: OpenAI) -> None:
    chunks = list(ask(client, HELLO, stream=True, stream_options={"continuous_usage_stats": True}))
    assert {chunk.usage for chunk in chunks} == {None}


def test_prompt_is_told_with_how_likely_each_of_its_tokens_was(client: OpenAI) -> None:
    told = ask(client, HELLO, prompt_logprobs=2, return_token_ids=True, n=2)
    first, *rest = told.prompt_logprobs
    assert first is None
    text = ""
    for token_id, likely in zip(told.prompt_token_ids[1:], rest, strict=True):
        own = likely[str(token_id)]
        ranked = sorted((one for one in likely.values() if one["rank"]), key=lambda one: one["rank"])
        assert [one["rank"] for one in ranked] == [1, 2]
        assert ranked[0]["logprob"] >= ranked[1]["logprob"]
        assert own["rank"] or own["logprob"] <= ranked[1]["logprob"]
        text += own["decoded_token"]
    assert "Count to 3" in text


def test_continued_message_is_one_with_its_beginning_if_echo_is_asked(client: OpenAI) -> None:
    more = ask(client, BEGUN, **GOES_ON).choices[0].message.content
    told = ask(client, BEGUN, **GOES_ON, echo=True, store=True)
    assert told.choices[0].message.content == "1, 2" + more
    assert told.choices[0].message.role == "assistant"
    assert client.chat.completions.retrieve(told.id).choices == told.choices
    streamed = ask(client, BEGUN, **GOES_ON, echo=True, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == "1, 2" + more


def test_echo_repeats_nothing_that_another_role_said(client: OpenAI) -> None:
    assert ask(client, HELLO, echo=True).choices[0].message == ask(client, HELLO).choices[0].message


def test_reasoning_is_left_out_where_it_is_not_wanted(client: OpenAI) -> None:
    thinking = ask(client, HELLO, reasoning_effort="low")
    assert thinking.choices[0].message.reasoning_content
    told = ask(client, HELLO, reasoning_effort="low", include_reasoning=False, store=True)
    assert "reasoning_content" not in told.choices[0].message.model_dump()
    assert told.choices[0].message.content == thinking.choices[0].message.content
    assert client.chat.completions.retrieve(told.id).choices == told.choices
    streamed = ask(client, HELLO, reasoning_effort="low", include_reasoning=False, stream=True)
    assert not any(hasattr(chunk.choices[0].delta, "reasoning_content") for chunk in streamed)


def test_four_choices_of_a_long_prompt_are_computed_from_one_prefill(client: OpenAI) -> None:
    long: list[Any] = [{"role": "user", "content": "Remember this. " * 60 + "Now tell a story."}]
    told = client.chat.completions.create(
        model=MODEL, messages=long, n=4, temperature=1.5, seed=3, store=True
    )
    drawn_here = ENGINE_URL not in os.environ  # a server's own generator may draw a likely answer twice
    assert len({choice.message.content for choice in told.choices}) >= (4 if drawn_here else 2)
    usages = [client.responses.retrieve(choice_id(told.id, place)).usage for place in range(4)]
    prompts = [usage.input_tokens for usage in usages if usage]
    computed = [usage.input_tokens - usage.input_tokens_details.cached_tokens for usage in usages if usage]
    assert sum(computed) < 1.5 * prompts[0], computed


def choice_id(completion: str, place: int) -> str:
    """The response that is the completion's choice at that place."""
    return f"resp_{int(completion.removeprefix('chatcmpl-'), 16) ^ place:032x}"


def test_documents_that_the_template_cannot_write_are_refused(demo_server: ServerProcess) -> None:
    body = {"model": MODEL, "messages": HELLO, "documents": [{"title": "T", "text": "Lions roar."}]}
    answer = httpx.post(f"{demo_server.api}/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "documents"


def test_model_is_not_told_of_tools_that_it_may_not_call_where_that_is_asked(client: OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    tools: dict[str, Any] = {"tools": [tool], "tool_choice": "none"}
    (bare, shown, left_out) = (
        ask(client, HELLO, **more).usage.prompt_tokens
        for more in ({}, tools, {**tools, "exclude_tools_when_tool_choice_none": True})
    )
    assert bare == left_out < shown
    called: dict[str, Any] = {**tools, "tool_choice": "required", "exclude_tools_when_tool_choice_none": True}
    assert ask(client, HELLO, **called).choices[0].message.tool_calls[0].function.name == "look"
