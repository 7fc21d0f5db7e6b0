"""Stop strings with the demo model: they end answers, and neither calls nor reasoning."""

import json
from typing import Any

import httpx
import pytest

from tests.acceptance.test_tools import ASK, SMALL, WEATHER
from tests.support.server_process import MODEL, ServerProcess

QUESTION = "Count to 5"
MARKS = ["\n", " ", "{", '"', "<", "tool", "get_"]
CHAT_TOOL = {"type": "function", "function": {key: WEATHER[key] for key in ("name", "parameters", "strict")}}


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{server.api}/{path}", json={"model": MODEL, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def respond(server: ServerProcess, text: str, **fields: Any) -> dict[str, Any]:
    return post(server, "responses", {"input": text, "temperature": 0, **fields})


def chat(server: ServerProcess, text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return post(server, "chat/completions", {"messages": messages, "temperature": 0, **fields})


def stream(server: ServerProcess, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = httpx.post(f"{server.api}/{path}", json={"model": MODEL, "stream": True, **body}, timeout=60)
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def text_of(response: dict[str, Any], kind: str = "message") -> str:
    return "".join(
        part["text"] for item in response["output"] if item["type"] == kind for part in item["content"]
    )


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_call_is_made_whatever_of_it_is_a_stop_string(demo_server: ServerProcess, choice: str) -> None:
    for stop in MARKS:
        fields = {"tools": SMALL, "tool_choice": choice, "reasoning": {"effort": "none"}, "stop": stop}
        made = respond(demo_server, ASK, **fields)
        (call,) = made["output"]
        assert (made["status"], call["type"], call["name"]) == ("completed", "function_call", "get_weather")
        assert json.loads(call["arguments"])["city"] in ("Paris", "Rome")


def test_a_call_of_a_chat_is_made_whatever_of_it_is_a_stop_string(demo_server: ServerProcess) -> None:
    fields = {"tools": [CHAT_TOOL], "reasoning_effort": "none"}
    free = chat(demo_server, ASK, **fields)["choices"][0]
    assert free["finish_reason"] == "tool_calls"
    made = chat(demo_server, ASK, stop=MARKS[:4], **fields)["choices"][0]
    assert made["finish_reason"] == "tool_calls"
    assert [call["function"] for call in made["message"]["tool_calls"]] == [
        call["function"] for call in free["message"]["tool_calls"]
    ]


def test_reasoning_is_whole_and_the_answer_ends(demo_server: ServerProcess) -> None:
    asked: dict[str, Any] = {"text": "Say hello twice.", "reasoning": {"effort": "low"}}
    free = respond(demo_server, **asked)
    thoughts, answer = text_of(free, "reasoning"), text_of(free)
    stop = next(letter for letter in answer[1:] if letter in thoughts)
    made = respond(demo_server, **asked, stop=stop)
    assert made["status"] == "completed"
    assert text_of(made, "reasoning") == thoughts
    assert text_of(made) == answer[: answer.index(stop)]


def test_tokens_after_a_stop_string_are_not_in_the_usage(demo_server: ServerProcess) -> None:
    """A string that one token completes: the output has the tokens up to it."""
    body = {"prompt": "<|im_start|>user\nCount to 5<|im_end|>\n<|im_start|>assistant\n", "temperature": 0}
    free = post(demo_server, "completions", {**body, "max_tokens": 30, "return_token_ids": True})
    ids = free["choices"][0]["token_ids"]
    for count in (3, 6):
        part = post(demo_server, "completions", {**body, "max_tokens": count})["choices"][0]["text"]
        before = post(demo_server, "completions", {**body, "max_tokens": count - 1})["choices"][0]["text"]
        stop = part[max(0, len(before) - 2) :]
        if not part.startswith(before) or part.index(stop) + len(stop) <= len(before):
            continue
        fields = {**body, "max_tokens": 30, "stop": [stop], "return_token_ids": True}
        made = post(demo_server, "completions", fields)
        assert made["usage"]["completion_tokens"] == count
        assert made["choices"][0]["token_ids"] == ids[:count]
        assert (made["choices"][0]["stop_reason"], made["choices"][0]["finish_reason"]) == (stop, "stop")
        assert made["choices"][0]["text"] == part.removesuffix(stop)


@pytest.mark.parametrize("include", [False, True])
def test_streamed_text_and_its_log_probabilities_are_those_of_the_whole_answer(
    demo_server: ServerProcess, include: bool
) -> None:
    asked = {"input": QUESTION, "temperature": 0, "reasoning": {"effort": "none"}}
    answer = text_of(post(demo_server, "responses", asked))
    for stop in (answer[3:5], answer[6:7]):
        fields = {
            **asked,
            "stop": stop,
            "include_stop_str_in_output": include,
            "include": ["message.output_text.logprobs"],
        }
        deltas = [event for event in stream(demo_server, "responses", fields) if "delta" in event]
        whole = post(demo_server, "responses", fields)
        text = answer[: answer.index(stop) + len(stop) * include]
        assert "".join(event["delta"] for event in deltas) == text_of(whole) == text
        assert all(event["delta"] for event in deltas)
        logprobs = [each for event in deltas for each in event["logprobs"]]
        assert [each["token"] for each in logprobs] == [
            each["token"] for each in whole["output"][0]["content"][0]["logprobs"]
        ]
        joined = "".join(each["token"] for each in logprobs)
        assert joined.startswith(text)
        assert len(joined) - len(text) < len(logprobs[-1]["token"])


def test_each_choice_ends_at_its_own_stop_string(demo_server: ServerProcess) -> None:
    fields = {"n": 3, "seed": 5, "reasoning_effort": "none"}
    free = chat(demo_server, QUESTION, **fields)["choices"]
    made = chat(demo_server, QUESTION, stop=["3"], **fields)["choices"]
    for whole, cut in zip(free, made, strict=True):
        assert cut["message"]["content"] == whole["message"]["content"].partition("3")[0]


def test_a_required_call_that_a_stop_token_cuts_off_is_no_completed_response(
    demo_server: ServerProcess,
) -> None:
    made = respond(
        demo_server,
        ASK,
        tools=SMALL,
        tool_choice="required",
        reasoning={"effort": "none"},
        stop_token_ids=list(range(40, 100)),
    )
    assert made["status"] == "failed"
    assert "tool_choice" in made["error"]["message"]


def test_a_stop_string_that_is_too_long_is_refused(demo_server: ServerProcess) -> None:
    body = {"model": MODEL, "input": QUESTION, "stop": ["x", "y" * 513]}
    answer = httpx.post(f"{demo_server.api}/responses", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stop")
