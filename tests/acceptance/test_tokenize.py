"""/tokenize and /detokenize: what a model is given, as vLLM tells it."""

from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from tests.acceptance.error_object import check_error
from tests.support.server_process import MODEL, REPOSITORY, ServerProcess

DEMO = REPOSITORY / "demo" / "holdfast-demo"
SAID = [{"role": "user", "content": "Count to 3"}]


def post(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/{path}", json=body)


def test_text_and_its_tokens_are_made_of_each_other(demo_server: ServerProcess) -> None:
    text = "Grüße, <|im_start|>\n\t世界"
    told = post(demo_server, "tokenize", model=MODEL, prompt=text, return_token_strs=True).json()
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert told["token_strs"] == AutoTokenizer.from_pretrained(DEMO).convert_ids_to_tokens(told["tokens"])
    assert "<|im_start|>" in told["token_strs"]
    assert told["max_model_len"] > 100
    assert post(demo_server, "detokenize", tokens=told["tokens"]).json() == {"prompt": text}
    assert post(demo_server, "tokenize", prompt=text).json()["token_strs"] is None


def test_messages_are_the_tokens_that_their_completion_is_given(demo_server: ServerProcess) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for more in (
        {},
        {"tools": tools},
        {"add_generation_prompt": False},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"add_special_tokens": True},
    ):
        told = post(demo_server, "tokenize", messages=SAID, **more).json()["tokens"]
        body = {"model": MODEL, "messages": SAID, "max_tokens": 1, "return_token_ids": True, **more}
        completion = post(demo_server, "v1/chat/completions", **body).json()
        assert told == completion["prompt_token_ids"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": SAID}, "prompt"),
        ("detokenize", {"tokens": [10**9]}, "tokens"),
        ("detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    scripted_server: ServerProcess, path: str, body: dict[str, Any], param: str
) -> None:
    error = check_error(post(scripted_server, path, **body), 400, "invalid_request_error")
    assert error["param"] == param


def test_unknown_model_is_a_404(scripted_server: ServerProcess) -> None:
    answer = post(scripted_server, "tokenize", model="other", prompt="a")
    check_error(answer, 404, "invalid_request_error")
