"""Replays: the same bytes as the first stream, from any point, while it runs and after."""

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.fix_server import Connect, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import DONE, create, join, parse, replay, text_of

SHORT = {"model": MODEL, "input": "Hello"}
LONG = {"model": MODEL, "input": "Hello", "max_output_tokens": 60}
"""More than a second on the paced server."""


def first_stream(server: ServerProcess, body: Mapping[str, object]) -> tuple[str, bytes]:
    """A new response's id and the bytes of its stream."""
    with create(server.url, body) as stream:
        raw = stream.read()
    response_id: str = parse(raw)[0].json["response"]["id"]
    return response_id, raw


def test_replay_is_the_first_stream_byte_for_byte(scripted_server: ServerProcess) -> None:
    response_id, raw = first_stream(scripted_server, SHORT)
    with replay(scripted_server.url, response_id) as stream:
        assert stream.read() == raw


def test_replay_is_the_first_stream_when_model_thought(demo_server: ServerProcess) -> None:
    response_id, raw = first_stream(demo_server, {**SHORT, "reasoning": {"effort": "high"}})
    with replay(demo_server.url, response_id) as stream:
        assert stream.read() == raw


CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
LOOK = {
    "type": "function",
    "name": "look",
    "parameters": CITY | {"additionalProperties": False},
    "strict": True,
}
YES = {"type": "grammar", "syntax": "regex", "definition": "(yes|no)"}
MANY = 50
"""Of a longer stream the first and last so many events are gone on from, and a seventh of those between."""
STREAMS: dict[str, dict[str, object]] = {
    "text": {},
    "background": {"background": True},
    "cut": {"max_output_tokens": 4},
    "thought": {
        "input": "Say hello.",
        "reasoning": {"effort": "high"},
        "thinking_token_budget": 40,
        "max_output_tokens": 100,
    },
    "logprobs": {"top_logprobs": 1, "include": ["message.output_text.logprobs"]},
    "call": {"tools": [LOOK], "tool_choice": "required"},
    "custom": {"tools": [{"type": "custom", "name": "say", "format": YES}], "tool_choice": "required"},
}


@pytest.mark.parametrize("stream", STREAMS)
def test_replay_after_any_event_is_the_rest_byte_for_byte(demo_server: ServerProcess, stream: str) -> None:
    response_id, raw = first_stream(demo_server, SHORT | STREAMS[stream])
    frames = parse(raw)
    asked = frames if len(frames) <= 2 * MANY else [*frames[:MANY], *frames[MANY:-MANY:7], *frames[-MANY:]]
    with httpx.Client() as client:
        for frame in asked:
            address = f"/responses/{response_id}?stream=true&starting_after={frame.number}"
            rest = client.get(demo_server.api + address).content
            assert rest == join(frames[frame.number + 1 :])


def test_replay_after_the_last_event_is_done_at_once(scripted_server: ServerProcess) -> None:
    response_id, raw = first_stream(scripted_server, SHORT)
    last = parse(raw)[-1]
    for after in (last.number, last.id):
        with replay(scripted_server.url, response_id, after) as stream:
            assert stream.read() == DONE


def test_replays_are_whole_when_answers_are_there_at_once(scripted_server: ServerProcess) -> None:
    for _ in range(50):  # a batch of the recorder may begin a response and hold its first tokens
        response_id, raw = first_stream(scripted_server, SHORT)
        with replay(scripted_server.url, response_id) as stream:
            assert stream.read() == raw


@pytest.mark.parametrize("taken", [1, 20])
def test_client_completes_stream_when_it_was_cut(
    paced_server: ServerProcess, connect: Connect, taken: int
) -> None:
    with create(paced_server.url, LONG) as stream:
        seen = stream.take(taken)
    response_id = seen[0].json["response"]["id"]
    responses = connect(paced_server).responses.with_streaming_response
    with responses.retrieve(response_id, stream=True, starting_after=seen[-1].number) as rest:
        raw = b"".join(frame.raw for frame in seen) + b"".join(rest.iter_bytes())
    with replay(paced_server.url, response_id) as uncut:
        assert uncut.read() == raw
    assert parse(raw)[-1].event == "response.incomplete"


def test_client_reads_events_when_it_resumes(paced_server: ServerProcess, connect: Connect) -> None:
    with create(paced_server.url, LONG) as stream:
        seen = stream.take(10)
    response_id = seen[0].json["response"]["id"]
    with connect(paced_server).responses.retrieve(response_id, stream=True, starting_after=9) as rest:
        numbers = [event.sequence_number for event in rest]
    assert numbers == list(range(10, numbers[-1] + 1))
    assert numbers[-1] > 20, "a busy server sends several tokens in one event"


@pytest.mark.parametrize("background", [False, True])
def test_readers_see_the_same_bytes_after_any_event_when_they_join_while_it_runs(
    paced_server: ServerProcess, background: bool
) -> None:
    def follow(response_id: str, after: int | str | None) -> bytes:
        with replay(paced_server.url, response_id, after) as reader:
            return reader.read()

    body = {**LONG, "max_output_tokens": 40, "background": background}
    with create(paced_server.url, body) as stream, ThreadPoolExecutor(50) as pool:
        seen = stream.take(1)
        response_id = seen[0].json["response"]["id"]
        readers = [(0, pool.submit(follow, response_id, None))]
        for frame in itertools.chain(seen, stream):
            after = frame.number if frame.number % 2 else frame.id
            readers.append((frame.number + 1, pool.submit(follow, response_id, after)))
        frames = parse(stream.raw)
        assert 20 < len(frames) <= 49
        for start, reader in readers:
            assert reader.result() == join(frames[start:])


def test_get_tells_progress_while_it_runs(paced_server: ServerProcess) -> None:
    with create(paced_server.url, LONG) as stream:
        created = stream.take(3)[0].json["response"]
        running = httpx.get(f"{paced_server.api}/responses/{created['id']}").json()
    assert running == created
    assert running["status"] == "in_progress"


def test_reader_misses_nothing_when_it_stops_reading_for_a_while(start_server: StartServer) -> None:
    server = start_server(scripted_tokens=4000)
    with create(server.url, SHORT) as stream:
        response_id = stream.take(1)[0].json["response"]["id"]
        address = f"{server.api}/responses/{response_id}"
        eventually(lambda: httpx.get(address).json()["status"] == "completed", within=60)
        raw = stream.read()
    frames = parse(raw)
    assert [frame.number for frame in frames] == list(range(len(frames)))
    final = frames[-1].json["response"]
    assert final["usage"]["output_tokens"] == 4000
    assert text_of(frames) == final["output"][0]["content"][0]["text"]
    with replay(server.url, response_id) as uncut:
        assert uncut.read() == raw
