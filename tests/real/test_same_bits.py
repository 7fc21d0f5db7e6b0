"""In bfloat16 a real model says the same, to the last bit of its logprobs, whatever happens beside it.

Tokens and log probabilities of the tokens and their rivals are compared with those of requests alone.
`RESPONSES` sets how many there are.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from openai import OpenAI

from engine.request import EngineRequest, StructuredOutput, TokenLogprobs
from tests.fix_server import Connect, StartServer
from tests.support import engines
from tests.support.engines import Bench, make_request, start_model
from tests.support.equal_bits import with_equal_bits
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess
from tests.support.smollm2 import FOLDER, MISSING

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not FOLDER.is_dir(), reason=MISSING),
    with_equal_bits,
]
RESPONSES = int(os.environ.get("RESPONSES", "200"))
JSON = StructuredOutput(
    kind="json_schema", text='{"type": "object", "properties": {"a": {"type": "string"}}}'
)
END = frozenset({2})
"""SmolLM2's <|im_end|>."""
SERVED = max(RESPONSES // 8, 8)
"""How many of them servers are asked for."""
Said = tuple[list[int], list[TokenLogprobs]]


def start(**settings: Any) -> Bench:
    defaults = {"dtype": "bfloat16", "torch_threads": None, "kv_blocks": 4000, "prompt_lookup": "auto"}
    return start_model(FOLDER, **{**defaults, **settings})


def requests() -> list[EngineRequest]:
    dice = Random(17)
    shared = [dice.randrange(20, 49_000) for _ in range(4_000)]
    found = []
    for number in range(RESPONSES):
        length = dice.choice([5, 33, 64, 150, 300, 513, 700]) if number % 25 else 4_000
        own = [dice.randrange(20, 49_000) for _ in range(length)]
        prompt = shared[: length // 2] + own[length // 2 :] if number % 3 == 0 else own
        count = dice.choice([20, 40, 60, 100, 160]) if number % 50 else 2_000
        sampling = {"temperature": dice.choice([0.0, 0.5, 0.8, 1.0, 1.2]), "seed": dice.randrange(2**31)}
        others: dict[str, Any] = {"logprobs": 2}
        others |= {"grammar": JSON, "stop_ids": END} if number % 7 == 1 else {}
        found.append(make_request(str(number), prompt, count, **sampling, **others))
    return found


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Thousands of tokens take their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "PATIENCE", 3600.0)
        yield


@pytest.fixture(scope="module")
def alone() -> Iterator[list[Said]]:
    bench = start()
    yield [bench.say(request)[0] for request in requests()]
    bench.engine.close(drain=True)


@pytest.mark.parametrize(
    ("together", "settings"),
    [
        (2, {}),
        (7, {"token_budget": 16}),
        (7, {"torch_threads": 1}),
        (64, {}),
        (64, {"token_budget": 64}),
        (64, {"kv_blocks": 500}),
    ],
    ids=str,
)
def test_beside_strangers(alone: list[Said], settings: dict[str, Any], together: int) -> None:
    bench, asked = start(max_running=together, **settings), requests()
    for begin in range(0, RESPONSES, together):
        assert bench.say(*asked[begin : begin + together]) == alone[begin : begin + together]
    bench.engine.close(drain=True)


def test_resumed_anywhere_by_another_process(alone: list[Said]) -> None:
    bench, dice = start(), Random(5)
    for request, (tokens, entries) in zip(requests(), alone, strict=True):
        if request.grammar is not None or len(tokens) < 3:
            continue
        stored = dice.randrange(1, len(tokens) - 1)
        rest = replace(
            request,
            prompt=(*request.prompt, *tokens[:stored]),
            max_tokens=request.max_tokens - stored,
            output_offset=stored,
        )
        assert bench.say(rest) == [(tokens[stored:], entries[stored:])]
    bench.engine.close(drain=True)


TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
SCHEMA: Any = {"type": "json_schema", "name": "place", "schema": TOOL["parameters"]}


def bodies() -> list[dict[str, Any]]:
    dice = Random(23)
    found = []
    for number in range(SERVED):
        asked = f"Tell me a story of {dice.randrange(1000)} days in a city. "
        wish: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        if number % 4 == 1:
            wish = {"tools": [TOOL], "tool_choice": {"type": "function", "name": "get_weather"}}
        elif number % 4 == 2:
            wish |= {"text": {"format": SCHEMA}}
        found.append(
            {
                "model": FOLDER.name,
                "input": asked * dice.randrange(1, 40),
                "temperature": dice.choice([0.0, 0.5, 0.8, 1.0, 1.2]),
                "max_output_tokens": dice.choice([40, 100, 300]),
                "extra_body": {"seed": dice.randrange(2**31)},
                **wish,
            }
        )
    return found


def said(client: OpenAI, response_id: str) -> list[Any]:
    """What a response says, once it has ended, with its log probabilities and without its ids."""
    running = ("queued", "in_progress")
    eventually(lambda: client.responses.retrieve(response_id).status not in running, within=600)
    response = client.responses.retrieve(response_id).model_dump()
    assert response["status"] in ("completed", "incomplete"), response["error"]
    return [(item.get("content"), item.get("arguments")) for item in response["output"]]


def kill_in_midst(doomed: ServerProcess, client: OpenAI, response_ids: list[str], dice: Random) -> None:
    """Kills a server once some more events of one response were seen; it starts again."""
    stream = client.responses.retrieve(dice.choice(response_ids), stream=True)
    for _event in zip(range(dice.randrange(10, 60)), stream, strict=False):
        pass
    doomed.kill()
    doomed.start()


def test_responses_of_servers_that_are_killed_in_turns_are_those_of_one_that_lives(
    start_server: StartServer, connect: Connect
) -> None:
    settings: dict[str, Any] = {"engine": "model", "model": FOLDER, "dtype": "bfloat16"}
    servers = [start_server(**settings, lease_seconds=2, max_deaths=1000) for _ in range(2)]
    clients = [connect(server) for server in servers]
    alone = [said(clients[0], clients[0].responses.create(**body, background=True).id) for body in bodies()]
    dice = Random(29)
    ids = [
        clients[number % 2].responses.create(**body, background=True).id
        for number, body in enumerate(bodies())
    ]
    for turn in range(3):
        kill_in_midst(servers[turn % 2], clients[1 - turn % 2], ids, dice)
    assert [said(clients[0], response_id) for response_id in ids] == alone
