"""What an agent's response takes in the database, and that its stream is replayed byte by byte."""

import json
import random
from typing import Any

import httpx
import psycopg

from tests.acceptance.traces import as_uuid
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

PROSE = """
    the path file directory content search pattern match line result list create update delete branch commit
    repository issue comment query filter limit offset sort field value name description optional required
    absolute relative workspace before after returns error when not found timeout seconds output command run
"""
WORDS = PROSE.split()
MAX_AT_REST = 15 * 1024
AT_REST = """
    select pg_column_size(r.request) + coalesce(pg_column_size(r.asked), 0) + pg_column_size(s.body)
    from responses r join response_streams s on s.tenant = r.tenant and s.response_id = r.id where r.id = %s
"""


def sentence(words: random.Random, count: int) -> str:
    return " ".join(words.choice(WORDS) for _ in range(count)).capitalize() + "."


def agent_request() -> dict[str, Any]:
    """About 26 KB of tools and 8 KB of instructions, of words as agents' have them."""
    words = random.Random(7)
    tools = [
        {
            "type": "function",
            "name": f"{words.choice(WORDS)}_{words.choice(WORDS)}_{number}",
            "description": sentence(words, 30),
            "parameters": {
                "type": "object",
                "properties": {
                    f"{words.choice(WORDS)}_{field}": {"type": "string", "description": sentence(words, 9)}
                    for field in range(5)
                },
                "additionalProperties": False,
            },
        }
        for number in range(28)
    ]
    instructions = "\n".join(sentence(words, 14) for _ in range(90))
    return {"model": MODEL, "input": "Go on.", "tools": tools, "instructions": instructions, "stream": True}


def create(server: ServerProcess, body: dict[str, Any]) -> tuple[str, str]:
    """The response's id, and its stream."""
    stream = httpx.post(f"{server.api}/responses", json=body, timeout=60).text
    assert "event: response.created" in stream, stream[:500]
    first = json.loads(stream.split("data: ")[1].split("\n")[0])
    return first["response"]["id"], stream


def codec_of(connection: psycopg.Connection, response: str) -> int | None:
    query = "select codec from response_streams where response_id = %s"
    row = connection.execute(query, [as_uuid(response)]).fetchone()
    return row[0] if row else None


def test_an_agents_response_is_small_and_replayed_byte_by_byte(
    scripted_server: ServerProcess, scripted_database: str
) -> None:
    body = agent_request()
    assert 24_000 < len(json.dumps(body["tools"])) < 30_000
    assert 7_000 < len(body["instructions"]) < 9_500
    response, sent = create(scripted_server, body)
    with psycopg.connect(scripted_database, autocommit=True) as connection:
        eventually(lambda: codec_of(connection, response) == 3)
        again = httpx.get(f"{scripted_server.api}/responses/{response}?stream=true", timeout=60).text
        assert again == sent
        frames = [json.loads(part.split("\n")[0]) for part in sent.split("data: ")[1:-1]]
        shown = connection.execute(
            "select payload from v_events where response_id = %s and payload is not null", [response]
        ).fetchall()
        whole = [frame for frame in frames if "delta" not in frame]
        assert [payload for (payload,) in shown] == whole
        stored = connection.execute(AT_REST, [as_uuid(response)]).fetchone()
        assert stored is not None
        print(f"{stored[0]} bytes at rest")  # noqa: T201
        assert stored[0] <= MAX_AT_REST


def test_a_request_with_what_stands_for_a_parameter_is_replayed_byte_by_byte(
    scripted_server: ServerProcess, scripted_database: str
) -> None:
    for odd in ('"tools":"\\u001a"', "\x1a", '"instructions":""'):
        tool = {
            "type": "function",
            "name": "f",
            "description": odd,
            "parameters": {"default": {"tools": odd}},
        }
        body = {**agent_request(), "tools": [tool], "instructions": odd, "metadata": {"tools": "x"}}
        response, sent = create(scripted_server, body)
        with psycopg.connect(scripted_database, autocommit=True) as connection:
            eventually(lambda: codec_of(connection, response) is not None)  # noqa: B023 - called at once
        again = httpx.get(f"{scripted_server.api}/responses/{response}?stream=true", timeout=60).text
        assert again == sent
