"""`truncation: "auto"` in the long loops of agents: in one input, in a chain, in a conversation."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.support.contract import Api
from tests.support.server_process import ServerProcess

Item = dict[str, Any]
TASK: list[Item] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Count the purple cats."},
]
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def turn(number: int, repeats: int = 330) -> list[Item]:
    """A thought of the model, its call, and a long result."""
    thought = [{"type": "reasoning_text", "text": f"thought {number}"}]
    call = {"call_id": f"c{number}", "name": "look", "arguments": f'{{"at": "{number}"}}'}
    text = f"result {number}: " + "so it is, and so it was " * repeats
    return [
        {"type": "reasoning", "summary": [], "content": thought},
        {"type": "function_call", **call},
        {"type": "function_call_output", "call_id": f"c{number}", "output": text},
    ]


@pytest.fixture(scope="module")
def api(scripted_server: ServerProcess) -> Iterator[Api]:
    made = Api(scripted_server)
    yield made
    made.close()


def numbers(pattern: str, prompt: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, prompt)]


def check(prompt: str, newest: int) -> None:
    """The prompt has instructions, task and the newest turns, and not the oldest, each whole."""
    assert "Be brief." in prompt
    assert "Count the purple cats." in prompt
    results = numbers(r"result (\d+):", prompt)
    assert results == list(range(newest + 1))[-len(results) :]
    assert 1 < len(results) < newest
    assert numbers(r'"at": ?"(\d+)"', prompt) == results
    assert numbers(r"thought (\d+)", prompt) in ([], results)


@pytest.mark.parametrize("way", ["input", "response", "conversation"])
def test_a_loop_with_one_question_goes_on_when_the_context_is_full(api: Api, way: str) -> None:
    body: dict[str, Any] = {"truncation": "auto", "tools": [TOOL], "max_output_tokens": 20}
    whole = [*TASK, *(item for number in range(30) for item in turn(number))]
    if way == "input":
        check(api.prompt(**body, input=whole), 29)
        api.refused({**body, "input": whole, "truncation": "disabled"}, "input")
        return
    if way == "conversation":
        body["conversation"] = api.send("POST", "conversations", {"items": TASK}).json()["id"]
        for number in range(0, 30, 10):
            items = [{"type": "message", **item} if "role" in item else item for item in whole[2:]]
            added = {"items": items[number * 3 : number * 3 + 15]}
            assert api.send("POST", f"conversations/{body['conversation']}/items", added).status_code == 200
            more = items[number * 3 + 15 : number * 3 + 30]
            prompt = api.prompt(**body, input=more)
        check(prompt, 29)
        return
    previous = api.create(**body, input=whole[:47])["id"]
    for number in range(15, 30):
        prompt = api.prompt(**body, input=turn(number), previous_response_id=previous)
        check(prompt, number)
        previous = api.create(**body, input=turn(number), previous_response_id=previous)["id"]


def test_a_response_says_how_many_items_its_prompt_left_out(api: Api) -> None:
    body: dict[str, Any] = {"truncation": "auto", "tools": [TOOL], "max_output_tokens": 20}
    whole = [*TASK, *(item for number in range(30) for item in turn(number))]
    prompt = api.prompt(**body, input=whole)
    made = api.create(**body, input=whole)
    assert made["dropped_items"] == 3 * (30 - len(numbers(r"result (\d+):", prompt)))
    assert api.send("GET", f"responses/{made['id']}").json()["dropped_items"] == made["dropped_items"]
    assert "dropped_items" not in api.create(**body, input=TASK)


@pytest.mark.faults
@pytest.mark.parametrize("turns", [100])
def test_prompts_of_a_long_loop_begin_mostly_as_the_one_before(api: Api, turns: int) -> None:
    body: dict[str, Any] = {"truncation": "auto", "tools": [TOOL], "max_output_tokens": 20}
    items, prompts = [*TASK], [""]
    for number in range(turns):
        items += turn(number, 30)
        prompts.append(api.prompt(**body, input=items))
    check(prompts[-1], turns - 1)
    same = sum(
        next((n for n, (one, other) in enumerate(zip(*pair, strict=False)) if one != other), len(pair[0]))
        for pair in pairwise(prompts)
    )
    assert same >= 0.8 * sum(map(len, prompts))
