"""How likely each token was, end to end through the official client."""

import math
from typing import Any

import pytest
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from tests.fix_server import Connect
from tests.support.server_process import MODEL, ServerProcess

ASKED: dict[str, Any] = {
    "model": MODEL,
    "input": "Say größe 😀 twice.",
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 5,
    "temperature": 0,
    "extra_body": {"reasoning": {"effort": "none"}},
}


def text_of(response: Any) -> ResponseOutputText:
    (message,) = [item for item in response.output if isinstance(item, ResponseOutputMessage)]
    (part,) = message.content
    assert isinstance(part, ResponseOutputText)
    return part


@pytest.mark.parametrize("store", [True, False])
def test_logprobs_spell_the_text_and_are_probabilities(
    demo_server: ServerProcess, connect: Connect, store: bool
) -> None:
    part = text_of(connect(demo_server).responses.create(**ASKED, store=store))
    assert part.logprobs
    assert b"".join(bytes(told.bytes) for told in part.logprobs).decode() == part.text
    for told in part.logprobs:
        assert told.logprob <= 1e-6
        assert len(told.top_logprobs) == 5
        best = told.top_logprobs[0]
        assert (best.token, best.bytes) == (told.token, told.bytes)  # greedy: the likeliest was taken
        assert math.isclose(best.logprob, told.logprob, abs_tol=1e-4)
        assert sum(math.exp(other.logprob) for other in told.top_logprobs) <= 1 + 1e-4
        assert [other.logprob for other in told.top_logprobs] == sorted(
            (other.logprob for other in told.top_logprobs), reverse=True
        )


def test_streamed_and_stored_logprobs_are_the_same(demo_server: ServerProcess, connect: Connect) -> None:
    client = connect(demo_server)
    deltas: list[Any] = []
    done: Any = None
    for event in client.responses.create(**ASKED, stream=True):
        if event.type == "response.output_text.delta":
            deltas += event.logprobs
        if event.type == "response.output_text.done":
            done = event.logprobs
        if event.type == "response.completed":
            final = event.response
    kept = text_of(client.responses.retrieve(final.id, include=["message.output_text.logprobs"]))
    assert kept == text_of(final)
    assert kept.logprobs is not None
    told = [(one.token, one.logprob) for one in kept.logprobs]
    assert [(one.token, one.logprob) for one in deltas] == told
    assert [(one.token, one.logprob) for one in done] == told


def test_include_without_a_count_tells_the_chosen_token_alone(
    demo_server: ServerProcess, connect: Connect
) -> None:
    part = text_of(connect(demo_server).responses.create(**{**ASKED, "top_logprobs": None}))
    assert part.logprobs
    assert all(told.top_logprobs == [] for told in part.logprobs)
