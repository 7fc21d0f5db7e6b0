"""One stream, told by OpenAI's names or by those of the Open Responses specification."""

import http.client
import json
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx
import pytest

from tests.acceptance.error_object import check_error
from tests.fix_server import StartServerOn
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import Frame, parse
from tests.support.websocket import WebSocket

SPEC = {"Holdfast-Event-Names": "open-responses"}
OPENAI = {"Holdfast-Event-Names": "openai"}
THINK = {
    "model": MODEL,
    "input": "Say hello.",
    "reasoning": {"effort": "high"},
    "thinking_token_budget": 40,
    "max_output_tokens": 100,
    "stream": True,
}
"""With limits, without which the model goes on until its context is full."""
RENAMED = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


def stream(
    server: ServerProcess, headers: Mapping[str, str], response: str | None = None, after: int | None = None
) -> list[Frame]:
    """A new response's events, or a stored one's."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    if response is None:
        json_headers = {**headers, "content-type": "application/json"}
        connection.request("POST", "/v1/responses", json.dumps(THINK), json_headers)
    else:
        position = "" if after is None else f"&starting_after={after}"
        connection.request("GET", f"/v1/responses/{response}?stream=true{position}", headers=headers)
    raw = connection.getresponse().read()
    connection.close()
    return parse(raw)


def id_of(frames: list[Frame]) -> str:
    made: str = frames[0].json["response"]["id"]
    return made


def by_spec(frames: list[Frame]) -> list[tuple[str, dict[str, object]]]:
    """What these events are by the specification's names."""
    names = [RENAMED.get(frame.event, frame.event) for frame in frames]
    return [(name, {**frame.json, "type": name}) for name, frame in zip(names, frames, strict=True)]


def told(frames: list[Frame]) -> list[tuple[str, dict[str, object]]]:
    return [(frame.event, frame.json) for frame in frames]


def test_live_and_replayed_streams_differ_in_two_names_alone(demo_server: ServerProcess) -> None:
    live = stream(demo_server, SPEC)
    assert {frame.event for frame in live} >= set(RENAMED.values())
    response = id_of(live)
    plain = stream(demo_server, {}, response)
    assert {frame.event for frame in plain} >= set(RENAMED)
    assert told(live) == by_spec(plain)
    assert stream(demo_server, SPEC, response) == live
    for after in (0, 5, len(live) - 2):
        assert stream(demo_server, SPEC, response, after) == live[after + 1 :]


def test_names_hold_over_a_websocket_too(demo_server: ServerProcess) -> None:
    asked = {name: value for name, value in THINK.items() if name != "stream"}
    with WebSocket(demo_server.url, headers=SPEC) as socket:
        events = socket.turn({**asked, "temperature": 0})
    names = {event["type"] for event in events}
    assert names >= set(RENAMED.values())
    assert not names & set(RENAMED)
    plain = stream(demo_server, {}, events[0]["response"]["id"])
    assert events == [event for _, event in by_spec(plain)]


def test_setting_holds_for_requests_that_do_not_choose_and_streams_of_other_replicas(
    start_server_on: StartServerOn, demo_server: ServerProcess, demo_database: str
) -> None:
    other = start_server_on(demo_database, event_names="open-responses")
    live = stream(demo_server, OPENAI)
    assert told(stream(other, {}, id_of(live))) == by_spec(live)
    assert stream(other, OPENAI, id_of(live)) == live


@pytest.mark.parametrize("streams", [True, False])
def test_unknown_names_are_refused_before_anything_begins(
    scripted_server: ServerProcess, streams: bool
) -> None:
    answer = httpx.post(
        f"{scripted_server.api}/responses",
        json={"model": MODEL, "input": "Hello", "stream": streams},
        headers={"Holdfast-Event-Names": "mine"},
    )
    error = check_error(answer, 400, "invalid_request_error")
    assert error["param"] == "Holdfast-Event-Names"
