"""Summaries of reasoning over HTTP, with the official client."""

from typing import Any

import httpx
import openai

from tests.acceptance.sdk_types import check_event, check_response
from tests.fix_server import StartServer
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create, replay

THINK: dict[str, Any] = {
    "model": MODEL,
    "input": "Say hello twice.",
    "reasoning": {"effort": "high", "summary": "auto"},
    "temperature": 0,
}


def reasoning_in(response: dict[str, Any]) -> dict[str, Any]:
    (item,) = [item for item in response["output"] if item["type"] == "reasoning"]
    found: dict[str, Any] = item
    return found


def test_a_summary_that_is_asked_for_streams_and_is_stored(demo_server: ServerProcess) -> None:
    with create(demo_server.url, THINK) as stream:
        frames = list(stream)
    for frame in frames:
        check_event(frame.data)
    deltas = [f.json["delta"] for f in frames if f.event == "response.reasoning_summary_text.delta"]
    item = reasoning_in(frames[-1].json["response"])
    assert len(deltas) > 1
    assert item["summary"] == [{"type": "summary_text", "text": "".join(deltas)}]
    assert item["content"][0]["text"] == "".join(deltas)
    url = f"{demo_server.api}/responses/{frames[-1].json['response']['id']}"
    stored = httpx.get(url)
    check_response(stored.content)
    assert reasoning_in(stored.json()) == item
    with replay(demo_server.url, frames[-1].json["response"]["id"]) as stream:
        assert [frame.data for frame in stream] == [frame.data for frame in frames]


def test_openais_client_shows_the_summary(demo_server: ServerProcess) -> None:
    client = openai.OpenAI(base_url=demo_server.api, api_key="none")
    with client.responses.stream(
        model=MODEL, input="Say hello twice.", reasoning={"effort": "high", "summary": "detailed"}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.reasoning_summary_text.delta" in kinds
    (item,) = [item for item in final.output if item.type == "reasoning"]
    assert [part.type for part in item.summary] == ["summary_text"]
    assert item.summary[0].text


def test_there_is_no_summary_unless_it_is_asked_for_and_the_setting_allows_it(
    demo_server: ServerProcess, start_server: StartServer
) -> None:
    plain = httpx.post(
        f"{demo_server.api}/responses", json={**THINK, "reasoning": {"effort": "high"}}, timeout=60
    )
    assert reasoning_in(plain.json())["summary"] == []
    server = start_server(reasoning_summary="off")
    off = httpx.post(f"{server.api}/responses", json=THINK, timeout=60)
    assert reasoning_in(off.json())["summary"] == []
