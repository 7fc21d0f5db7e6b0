"""Streams as the official client and OpenAI's types want them, and as the bytes of the protocol."""

import itertools
import json
from collections.abc import Mapping

import httpx
import pytest

from tests.acceptance.sdk_types import check_event, check_response
from tests.fix_server import Connect, StartServer
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import DONE, KEEP_ALIVE, Frame, create, parse, text_of

COMPLETED: dict[str, object] = {"model": MODEL, "input": "Hello"}
INCOMPLETE = {**COMPLETED, "max_output_tokens": 8}
UNSTORED = {**COMPLETED, "store": False}
INSTRUCTED = {
    "model": MODEL,
    "input": [{"role": "user", "content": "Hello"}],
    "instructions": "Be brief.",
    "metadata": {"topic": 'a "quoted" ünïcödé 😀 value'},
    "temperature": 0.7,
    "top_p": 0.9,
    "reasoning": {"effort": "none"},
    "text": {"verbosity": "low"},
    "user": "someone",
}
REQUESTS = {
    "completed": COMPLETED,
    "incomplete": INCOMPLETE,
    "unstored": UNSTORED,
    "instructed": INSTRUCTED,
}

Body = Mapping[str, object]

every_request = pytest.mark.parametrize("request_body", REQUESTS.values(), ids=REQUESTS)


def stream_of(server: ServerProcess, body: Body) -> list[Frame]:
    with create(server.url, body) as stream:
        return list(stream)


@every_request
def test_events_come_in_openais_order(scripted_server: ServerProcess, request_body: Body) -> None:
    frames = stream_of(scripted_server, request_body)
    kinds = [frame.event.removeprefix("response.") for frame in frames]
    deltas = kinds.count("output_text.delta")
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete" if request_body is INCOMPLETE else "completed",
    ]
    assert deltas > 0


@every_request
def test_events_are_numbered_from_zero_without_gap(
    scripted_server: ServerProcess, request_body: Body
) -> None:
    frames = stream_of(scripted_server, request_body)
    assert [frame.number for frame in frames] == list(range(len(frames)))


@every_request
def test_every_event_is_one_of_openais_with_its_fields(
    scripted_server: ServerProcess, request_body: Body
) -> None:
    for frame in stream_of(scripted_server, request_body):
        check_event(frame.data)


def test_every_event_of_model_that_thinks_is_one_of_openais(demo_server: ServerProcess) -> None:
    frames = stream_of(demo_server, {**COMPLETED, "reasoning": {"effort": "high"}})
    for frame in frames:
        check_event(frame.data)
    kinds = [kind for kind, _ in itertools.groupby(frame.event for frame in frames)]
    assert "response.reasoning_text.delta" in kinds
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    assert [frame.json["output_index"] for frame in frames if "output_item" in frame.event] == [0, 0, 1, 1]


@every_request
def test_ids_and_indexes_agree_throughout_stream(scripted_server: ServerProcess, request_body: Body) -> None:
    frames = stream_of(scripted_server, request_body)
    bodies = [frame.json for frame in frames]
    responses = {body["response"]["id"] for body in bodies if "response" in body}
    items = {body["item"]["id"] for body in bodies if "item" in body}
    pointed_at = {body["item_id"] for body in bodies if "item_id" in body}
    assert len(responses) == 1
    assert items == pointed_at
    assert len(items) == 1
    assert {body["output_index"] for body in bodies if "output_index" in body} == {0}
    assert {body["content_index"] for body in bodies if "content_index" in body} == {0}


@every_request
def test_deltas_add_up_to_text_of_every_later_event(
    scripted_server: ServerProcess, request_body: Body
) -> None:
    frames = stream_of(scripted_server, request_body)
    text_done, part_done, item_done, final = [frame.json for frame in frames[-4:]]
    assert text_done["text"] == text_of(frames)
    assert part_done["part"]["text"] == text_of(frames)
    assert item_done["item"]["content"] == [part_done["part"]]
    assert final["response"]["output"] == [item_done["item"]]


@every_request
def test_bytes_are_whole_frames_and_end_with_done(scripted_server: ServerProcess, request_body: Body) -> None:
    with create(scripted_server.url, request_body) as stream:
        raw = stream.read()
    assert raw.endswith(b"\n\n" + DONE)
    assert raw.startswith((b"id: 0-1.", b"id: 0\n"))
    assert b"\r" not in raw
    assert stream.writes
    assert all(written.endswith(b"\n\n") for written in stream.writes), "an event came in two pieces"
    assert parse(raw)


def test_stream_says_what_it_is_in_its_headers(scripted_server: ServerProcess) -> None:
    with create(scripted_server.url, COMPLETED) as stream:
        assert stream.status == 200
        assert stream.response.headers.get_content_type() == "text/event-stream"
        assert stream.response.headers["cache-control"] == "no-cache, no-store"
        assert stream.response.headers["x-request-id"].startswith("req_")
        stream.read()


def test_clients_helper_accumulates_what_get_returns(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    client = connect(scripted_server)
    with client.responses.stream(model=MODEL, input="Hello", metadata={"a": "b"}) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    kept = client.responses.retrieve(final.id)
    assert _without_parsed(final.to_dict()) == kept.to_dict()
    assert final.output_text


def _without_parsed(value: object) -> object:
    """The helper adds `parsed` to what it accumulates."""
    if isinstance(value, dict):
        return {name: _without_parsed(inner) for name, inner in value.items() if name != "parsed"}
    if isinstance(value, list):
        return [_without_parsed(inner) for inner in value]
    return value


@pytest.mark.parametrize("effort", ["none", "high"])
def test_clients_helper_accumulates_stream_of_model(
    demo_server: ServerProcess, connect: Connect, effort: str
) -> None:
    client = connect(demo_server)
    with client.responses.stream(
        model=MODEL, input="Count to 20", extra_body={"reasoning": {"effort": effort}}
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == text == client.responses.retrieve(final.id).output_text
    assert text.startswith("1, 2, 3")


def test_clients_helper_takes_incomplete_stream_to_its_end(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    with connect(scripted_server).responses.stream(model=MODEL, input="Hello", max_output_tokens=8) as stream:
        kinds = [event.type for event in stream]
    assert kinds[-1] == "response.incomplete"


@every_request
def test_response_without_streaming_is_one_of_openais(
    scripted_server: ServerProcess, request_body: Body
) -> None:
    answer = httpx.post(f"{scripted_server.api}/responses", json=request_body)
    response = check_response(answer.content)
    assert answer.status_code == 200
    assert isinstance(json.loads(answer.content)["created_at"], int)
    assert response.status == ("incomplete" if request_body is INCOMPLETE else "completed")
    if request_body is not UNSTORED:
        assert httpx.get(f"{scripted_server.api}/responses/{response.id}").content == answer.content


@every_request
def test_final_event_carries_response_that_get_returns(
    scripted_server: ServerProcess, request_body: Body
) -> None:
    final = stream_of(scripted_server, request_body)[-1].json["response"]
    kept = httpx.get(f"{scripted_server.api}/responses/{final['id']}")
    if request_body is UNSTORED:
        assert kept.status_code == 404
    else:
        assert kept.json() == final


def test_response_repeats_parameters_of_its_request(scripted_server: ServerProcess) -> None:
    answer = httpx.post(f"{scripted_server.api}/responses", json=INSTRUCTED).json()
    for name in ("model", "instructions", "metadata", "temperature", "top_p", "user"):
        assert answer[name] == INSTRUCTED[name]
    assert answer["text"]["verbosity"] == "low"
    assert answer["reasoning"]["effort"] == "none"


def test_silent_stream_is_kept_alive_by_comments(start_server: StartServer) -> None:
    server = start_server(keep_alive_seconds=0.1, scripted_step_seconds=0.5, scripted_tokens=3)
    with create(server.url, COMPLETED) as stream:
        blocks = list(stream.blocks())
    comments = [block for block in blocks if block.startswith(b":")]
    assert len(comments) >= 3
    assert [frame.number for frame in parse(stream.raw)] == list(range(len(blocks) - len(comments) - 1))
    assert all(written.endswith((b"\n\n", KEEP_ALIVE)) for written in stream.writes)


def test_keep_alive_after_an_id_is_no_event_to_the_sdk(start_server: StartServer, connect: Connect) -> None:
    """Its decoder takes the blank line after a comment for an event without data once it knows an id."""
    server = start_server(keep_alive_seconds=0.1, scripted_step_seconds=0.5, scripted_tokens=3)
    with connect(server).responses.create(model=MODEL, input="Hello", stream=True) as stream:
        numbers = [event.sequence_number for event in stream]
    assert numbers == list(range(len(numbers)))
