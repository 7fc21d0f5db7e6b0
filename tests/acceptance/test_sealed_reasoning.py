"""Reasoning that clients carry: sealed, replayed, opened by every replica and for no other tenant."""

from typing import Any

import httpx
import psycopg
import pytest

from tests.fix_server import StartServer
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.sse import create, parse

SEALED = "reasoning.encrypted_content"
THINK: dict[str, Any] = {
    "model": MODEL,
    "input": "Say hello twice.",
    "reasoning": {"effort": "high"},
    "include": [SEALED],
    "temperature": 0,
}
USER = {"role": "user", "content": "What is f?"}
CALL = [
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "7"},
]
Item = dict[str, Any]


def post(server: ServerProcess, body: Item, key: str = "none") -> Item:
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{server.api}/responses", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    told: Item = answer.json()
    return told


def reasoning_of(response: Item) -> Item:
    (item,) = [item for item in response["output"] if item["type"] == "reasoning"]
    return dict(item)


def count(server: ServerProcess, *thoughts: Item, key: str = "none") -> int:
    """The tokens of a prompt in which these come before a call and its output."""
    answer = httpx.post(
        f"{server.api}/responses/input_tokens",
        json={"input": [USER, *thoughts, *CALL]},
        headers={"authorization": f"Bearer {key}"},
    )
    assert answer.status_code == 200, answer.text
    return int(answer.json()["input_tokens"])


@pytest.mark.parametrize("store", [True, False])
def test_reasoning_is_sealed_alike_in_events_and_in_the_response(
    demo_server: ServerProcess, store: bool
) -> None:
    with create(demo_server.url, {**THINK, "store": store}) as stream:
        frames = parse(stream.read())
    (done,) = [
        frame.json["item"]
        for frame in frames
        if frame.event == "response.output_item.done" and frame.json["item"]["type"] == "reasoning"
    ]
    final = frames[-1].json["response"]
    assert done["encrypted_content"].startswith("hf1.")
    assert reasoning_of(final) == done
    if store:
        assert httpx.get(f"{demo_server.api}/responses/{final['id']}").json() == final


def test_reasoning_is_not_sealed_unless_asked_for(demo_server: ServerProcess) -> None:
    assert "encrypted_content" not in reasoning_of(post(demo_server, {**THINK, "include": []}))


def test_reader_may_ask_for_sealed_reasoning_later(demo_server: ServerProcess) -> None:
    told = post(demo_server, {**THINK, "include": []})
    url = f"{demo_server.api}/responses/{told['id']}"
    later = reasoning_of(httpx.get(url, params={"include[]": SEALED}).json())
    assert later.pop("encrypted_content").startswith("hf1.")
    assert later == reasoning_of(told)


def test_sealed_reasoning_is_replayed_as_the_reasoning_itself(demo_server: ServerProcess) -> None:
    item = reasoning_of(post(demo_server, {**THINK, "store": False}))
    bare = {name: value for name, value in item.items() if name != "content"}
    plain = {name: value for name, value in item.items() if name != "encrypted_content"}
    foreign = {**bare, "encrypted_content": "gAAAAABl" + "x" * 200}
    assert count(demo_server, bare) == count(demo_server, plain) == count(demo_server, item)
    assert count(demo_server, bare) > count(demo_server)
    assert count(demo_server, foreign) == count(demo_server)


def test_every_replica_opens_what_another_sealed_and_no_other_tenant_does(
    start_server: StartServer, database_url: str
) -> None:
    first = start_server(engine="model")
    second = start_server()
    item = reasoning_of(post(first, THINK))
    bare = {name: value for name, value in item.items() if name != "content"}
    ours, theirs = (
        run_command("keys", "create", "--tenant", tenant, database_url=database_url).stdout.strip()
        for tenant in ("default", "globex")
    )
    assert count(second, bare, key=ours) > count(second, key=ours)
    assert count(second, bare, key=theirs) == count(second, key=theirs)
    with psycopg.connect(database_url) as connection:
        assert connection.execute("select count(*) from seal_keys").fetchone() == (1,)
