"""`use_beam_search` through the official client: the n likeliest answers, best first."""

from typing import Any

import pytest
from openai import OpenAI

from tests.fix_server import Connect
from tests.support.server_process import MODEL, ServerProcess

WIDTH = 4
MESSAGES: Any = [{"role": "user", "content": "Say something about blue whales"}]


@pytest.fixture
def client(demo_server: ServerProcess, connect: Connect) -> OpenAI:
    return connect(demo_server)


def chat(client: OpenAI, **fields: Any) -> Any:
    beams = {"use_beam_search": True, **fields.pop("extra_body", {})}
    wanted: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "n": WIDTH, "max_tokens": 12, **fields}
    return client.chat.completions.create(**wanted, extra_body=beams)


def likelihood(choice: Any) -> float:
    return float(sum(token.logprob for token in choice.logprobs.content))


def test_the_choices_of_a_chat_are_the_likeliest_and_the_best_comes_first(client: OpenAI) -> None:
    told = chat(client, logprobs=True, extra_body={"min_tokens": 12, "length_penalty": 0})
    texts = [one.message.content for one in told.choices]
    likelihoods = [likelihood(one) for one in told.choices]
    assert len(set(texts)) == WIDTH
    assert likelihoods == sorted(likelihoods, reverse=True)
    assert told.usage.completion_tokens == 12 * WIDTH
    greedy = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0,
        max_tokens=12,
        logprobs=True,
        extra_body={"min_tokens": 12},
    )
    assert likelihoods[0] >= likelihood(greedy.choices[0]) - 1e-4


def test_a_search_gives_the_same_whatever_is_drawn_by_and_also_when_streamed(client: OpenAI) -> None:
    first = [one.message.content for one in chat(client).choices]
    again = chat(client, temperature=1.7, top_p=0.3, seed=8)
    assert [one.message.content for one in again.choices] == first
    streamed = dict.fromkeys(range(WIDTH), "")
    for chunk in chat(client, stream=True):
        for one in chunk.choices:
            streamed[one.index] += one.delta.content or ""
    assert list(streamed.values()) == first


def test_every_prompt_of_a_completion_has_a_search_of_its_own(client: OpenAI) -> None:
    def ask(prompt: Any) -> list[str]:
        told = client.completions.create(
            model=MODEL, prompt=prompt, n=2, max_tokens=8, extra_body={"use_beam_search": True}
        )
        assert [one.index for one in told.choices] == list(range(len(told.choices)))
        return [one.text for one in told.choices]

    both = ask(["Once upon", "The cat"])
    assert both == [*ask("Once upon"), *ask("The cat")]
    assert len(set(both)) == 4


def test_a_stored_chat_has_the_likeliest_answer(client: OpenAI) -> None:
    told = chat(client, store=True, n=1)
    stored = client.chat.completions.retrieve(told.id)
    assert stored.choices[0].message.content == told.choices[0].message.content
