"""What an earlier release stored has every field of OpenAI's objects when it is read, to the byte."""

import httpx
import psycopg
import pytest

from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create, parse, replay

CALLED = {
    "model": MODEL,
    "input": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hi", "annotations": []}]},
        {"role": "user", "content": "Look"},
    ],
    "tools": [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}],
}
CASES = {"call": {**CALLED, "tool_choice": "required"}, "text": {**CALLED, "tool_choice": "none"}}
PART, OLDER_PART = '"annotations":[],"logprobs":[]', '"annotations":[]'
DONE = '("type":"response.function_call_arguments.done","sequence_number":[0-9]+,"item_id":"[^"]*")'
PARTS = [
    "update response_streams set body = replace(body, %s, %s)",
    "update items set payload = replace(payload::text, %s, %s)::json",
    "update conversation_items set payload = replace(payload::text, %s, %s)::json",
]
NAMES = "update response_streams set body = regexp_replace(body, %s, '\\1', 'g')"


def make_older(database_url: str) -> None:
    """Takes from all that is stored what earlier releases did not store."""
    with psycopg.connect(database_url) as connection:
        connection.execute(NAMES, [DONE + ',"name":"[^"]*"'])
        for statement in PARTS:
            connection.execute(statement, [PART, OLDER_PART])


@pytest.mark.parametrize("case", CASES)
def test_stream_without_names_and_logprobs_is_replayed_with_them(
    scripted_server: ServerProcess, scripted_database: str, case: str
) -> None:
    with create(scripted_server.url, CASES[case]) as stream:
        first = stream.read()
    frames = parse(first)
    name = frames[-1].json["response"]["id"]
    whole = httpx.get(f"{scripted_server.api}/responses/{name}").json()
    given = httpx.get(f"{scripted_server.api}/responses/{name}/input_items").json()
    if case == "call":
        (done,) = [frame.json for frame in frames if frame.event.endswith("arguments.done")]
        assert done["name"] == "look"
    else:
        parts = [frame.json["part"] for frame in frames if ".content_part." in frame.event]
        assert [part["logprobs"] for part in parts] == [[], []]
        assert whole["output"][-1]["content"][0]["logprobs"] == []
    make_older(scripted_database)
    for place in (None, *range(len(frames) - 1)):
        with replay(scripted_server.url, name, after=place) as again:
            assert first.endswith(again.read())
    assert httpx.get(f"{scripted_server.api}/responses/{name}").json() == whole
    assert httpx.get(f"{scripted_server.api}/responses/{name}/input_items").json() == given
    assert any("logprobs" in str(item["content"]) for item in given["data"])


def test_conversations_item_without_logprobs_is_read_with_them(
    scripted_server: ServerProcess, scripted_database: str
) -> None:
    items = {"items": CALLED["input"]}
    made = httpx.post(f"{scripted_server.api}/conversations", json=items).json()
    address = f"{scripted_server.api}/conversations/{made['id']}/items"
    listed = httpx.get(address).json()
    named = next(item["id"] for item in listed["data"] if item["role"] == "assistant")
    make_older(scripted_database)
    assert httpx.get(address).json() == listed
    assert httpx.get(f"{address}/{named}").json()["content"][0]["logprobs"] == []
