"""POST /v1/responses/compact: a short input for a long one, which only this server can read."""

from typing import Any

import httpx
import psycopg
import pytest
from openai import OpenAI
from openai.types.responses import ResponseCompactionItem

from tests.acceptance.error_object import check_error
from tests.fix_server import Connect
from tests.support.server_process import MODEL, ServerProcess
from tests.support.tenants import make_tenant_key

Item = dict[str, Any]
TALK: list[Item] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "My name is Bartholomew."},
    {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Nice to meet you, Bartholomew."}],
    },
    {"role": "user", "content": "What is seven times six?"},
    {"type": "function_call", "call_id": "c1", "name": "multiply", "arguments": '{"a": 7, "b": 6}'},
    {"type": "function_call_output", "call_id": "c1", "output": "42"},
    {"role": "assistant", "content": "It is 42."},
]


def compact(server: ServerProcess, key: str = "none", **body: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(
        f"{server.api}/responses/compact", json={"model": MODEL, **body}, headers=headers, timeout=60
    )


def compacted(server: ServerProcess, key: str = "none", **body: object) -> list[Item]:
    answer = compact(server, key, **body)
    assert answer.status_code == 200, answer.text
    output: list[Item] = answer.json()["output"]
    return output


def count(server: ServerProcess, items: list[Item], key: str = "none") -> int:
    answer = httpx.post(
        f"{server.api}/responses/input_tokens",
        json={"input": items},
        headers={"authorization": f"Bearer {key}"},
    )
    assert answer.status_code == 200, answer.text
    return int(answer.json()["input_tokens"])


def test_users_and_developers_words_stay_and_the_rest_becomes_one_sealed_item(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    told = connect(scripted_server).responses.compact(
        model=MODEL,
        input=TALK,  # type: ignore[arg-type]  # items as clients write them
        prompt_cache_key="k",
    )
    assert told.object == "response.compaction"
    assert isinstance(told.created_at, int)
    assert told.usage.total_tokens == 0
    *kept, last = told.output
    assert [getattr(item, "role", None) for item in kept] == ["developer", "user", "user"]
    assert isinstance(last, ResponseCompactionItem)
    assert last.encrypted_content.startswith("hf1.")
    assert len({item.id for item in told.output}) == 4


def test_model_is_told_what_was_left_out(scripted_server: ServerProcess) -> None:
    output = compacted(scripted_server, input=TALK)
    answer = httpx.post(
        f"{scripted_server.api}/responses",
        json={"model": MODEL, "input": output, "enable_response_messages": True},
    ).json()
    prompt = answer["input_messages"][0]["message"]
    for said in ("Be brief.", "My name is Bartholomew.", "It is 42.", "multiply", "output of the call: 42"):
        assert said in prompt


@pytest.mark.parametrize("store", [True, False])
def test_compacted_conversation_goes_on(
    scripted_server: ServerProcess, connect: Connect, store: bool
) -> None:
    client: OpenAI = connect(scripted_server)
    output: Any = compacted(scripted_server, input=TALK)
    first = client.responses.create(
        model=MODEL, input=[*output, {"role": "user", "content": "Go on."}], tools=[], store=store
    )
    assert first.status == "completed"
    if store:
        second = client.responses.create(model=MODEL, input="And on.", previous_response_id=first.id)
        assert second.status == "completed"
        listed = [item.type for item in client.responses.input_items.list(first.id)]
        assert "compaction" in listed


def test_compaction_of_a_stored_conversation_is_that_of_its_items(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    first = connect(scripted_server).responses.create(model=MODEL, input="Hello")
    output = compacted(scripted_server, previous_response_id=first.id, input="More")
    assert [item["type"] for item in output] == ["message", "message", "compaction"]
    assert [item["content"][0]["text"] for item in output[:2]] == ["Hello", "More"]


def test_compaction_of_a_compaction_keeps_what_the_first_one_said(scripted_server: ServerProcess) -> None:
    once = compacted(scripted_server, input=TALK)
    more = {"role": "assistant", "content": "Anything else?"}
    twice = compacted(scripted_server, input=[*once, more])
    assert [item["type"] for item in twice] == [item["type"] for item in once]
    assert count(scripted_server, twice) > count(scripted_server, once)


def test_calls_without_an_output_stay_answerable(scripted_server: ServerProcess) -> None:
    output = compacted(scripted_server, input=TALK[:5])
    assert [item["type"] for item in output] == ["message"] * 3 + ["compaction", "function_call"]
    assert count(scripted_server, [*output, TALK[5]]) > 0


def test_nothing_of_a_compaction_is_stored(scripted_server: ServerProcess, scripted_database: str) -> None:
    compacted(scripted_server, input=[{"role": "assistant", "content": "uncompacted secret " * 4000}])
    rows = "select count(*) from items where payload::text like '%uncompacted secret%'"
    with psycopg.connect(scripted_database) as connection:
        assert connection.execute(rows).fetchone() == (0,)


@pytest.mark.parametrize("server", ["scripted_server", "demo_server"])
def test_long_conversation_is_summed_up_by_the_model(server: str, request: pytest.FixtureRequest) -> None:
    running: ServerProcess = request.getfixturevalue(server)
    talk = [
        message
        for turn in range(40)
        for message in (
            {"role": "user", "content": f"Say something about {turn}."},
            {"role": "assistant", "content": f"About {turn} there is this to say: " + "it is so. " * 60},
        )
    ]
    answer = compact(running, input=talk, instructions="Be brief.")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["usage"]["output_tokens"] > 0
    assert told["output"][-1]["type"] == "compaction"
    assert count(running, told["output"]) < count(running, talk) / 2


def test_another_tenant_is_told_nothing_of_a_compaction(
    keyed_server: ServerProcess, keyed_database: str
) -> None:
    server = keyed_server
    ours, theirs = (make_tenant_key(keyed_database, tenant) for tenant in ("compacts", "peeks"))
    (item,) = compacted(server, ours, input=[{"role": "assistant", "content": "A secret. " * 40}])
    forged = {**item, "encrypted_content": "gAAAAA" + "x" * 90}
    assert count(server, [item], theirs) == count(server, [forged], theirs) == count(server, [forged], ours)
    assert count(server, [item], ours) > count(server, [item], theirs)


WRONG: list[tuple[dict[str, object], int, str]] = [
    ({"model": None, "input": "Hello"}, 400, "model"),
    ({"model": "gpt-9", "input": "Hello"}, 404, "model"),
    ({}, 400, "input"),
    ({"input": 7}, 400, "input"),
    ({"input": [{"type": "compaction"}]}, 400, "input[0].encrypted_content"),
    ({"previous_response_id": "resp_x"}, 400, "previous_response_id"),
]


@pytest.mark.parametrize(("body", "status", "param"), WRONG)
def test_wrong_compaction_is_refused_by_name(
    scripted_server: ServerProcess, body: dict[str, object], status: int, param: str
) -> None:
    error = check_error(compact(scripted_server, "none", **body), status, "invalid_request_error")
    assert error["param"] == param
