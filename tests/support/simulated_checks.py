"""What must hold of a simulated world once it has come to rest."""

import itertools
from uuid import UUID

import msgspec

from server.delivery import stored_responses
from server.delivery.stored_responses import StreamReader, read_response
from server.protocol.responses.events import Event, frame
from server.protocol.responses.response import TERMINAL_STATUSES
from server.recording.recorder_messages import EVENTS_LOST
from server.recovery.claimer import CANNOT_GO_ON, CHANGED
from server.store import log_append, log_read
from tests.support.builders import BREAK_PARSER, TENANT, SpelledParser
from tests.support.event_order import is_terminal
from tests.support.memory import MemoryDatabase, Row
from tests.support.simulated_parts import Client, answer_of
from tests.support.simulation import World


def check(world: World) -> None:
    """Fails with what does not hold. Numbers, attempts and statuses were checked as they were written."""
    assert not world.memory.violations, world.memory.violations
    for response, row in world.memory.rows.items():
        logged = [
            (event, chunk.attempt)
            for chunk, _ in row.log
            for event in log_read.decode_row(*chunk[2:3], *_place(chunk), chunk.body)
        ]
        log = [event for event, _ in logged]
        frames = [frame(response, event, attempt) for event, attempt in logged]
        _check_end(world, row, log)
        _check_text(world, response, log)
        for client in world.clients:
            if client.response == response:
                _check_client(world, row, frames, client)
        if not row.deleted:
            _check_replays(world, response, frames)
    _check_unstored(world)
    for key, answered in world.keyed.items():
        there = answered & world.memory.rows.keys() if world.faults.loses_more else answered
        assert len(there) <= 1, f"{key} made several responses"


def _check_client(world: World, row: Row, frames: list[bytes], client: Client) -> None:
    pairs = zip(client.frames, frames, strict=False)
    differs = next((at for at, (seen, stored) in enumerate(pairs) if seen != stored), None)
    if differs is None and len(client.frames) > len(frames):
        differs = len(frames)
    if differs is None:
        assert row.deleted or not client.done or len(client.frames) == len(frames), "a stream was cut"
        return
    assert world.faults.loses_more, "a client saw what is not stored"
    world.faults.counts["clients that saw what is not stored"] += 1
    status, code = row.stored.status, row.stored.error_code
    if (status, code) == ("failed", EVENTS_LOST):
        return
    if status == "failed" and b"response.completed" in client.frames[-1]:
        return
    seen, stored = client.frames[differs], [chunk for chunk, _ in row.log]
    written = world.memory.journal.written[client.response]
    writers = {
        (chunk.attempt, writer)
        for chunk, writer in written
        if chunk.first_seq <= differs < chunk.first_seq + chunk.n
        for event in log_read.decode_row(*chunk[2:3], *_place(chunk), chunk.body)
        if frame(client.response, event, chunk.attempt) == seen
    }
    assert writers, "a client saw what was never committed"
    now = next(
        (chunk for chunk in stored if chunk.first_seq <= differs < chunk.first_seq + chunk.n), stored[-1]
    )
    # Where a claim was lost with its replica, another one makes the same attempt.
    now_writers = {(chunk.attempt, writer) for chunk, writer in written if chunk == now}
    assert writers != now_writers, "a client saw other content of the same attempt"


def _place(chunk: log_append.NewLogRow) -> tuple[int, int, int]:
    return chunk.kind, chunk.output_index, chunk.content_index


def _check_end(world: World, row: Row, log: list[Event]) -> None:
    stored = row.stored
    assert stored.status in TERMINAL_STATUSES
    assert [is_terminal(event) for event in log] == [False] * (len(log) - 1) + [True]
    assert stored.error_message not in (CHANGED, CANNOT_GO_ON)
    assert world.faults.loses_more or stored.error_code != EVENTS_LOST
    assert row.folded or stored.error_code == EVENTS_LOST, "an ended response whose log is not folded"
    told = msgspec.json.decode(log[-1].body)["response"]
    assert told["status"] == stored.status
    assert world.memory.metered[stored.id].output_tokens == told["usage"]["output_tokens"]
    if not row.deleted:
        found = read_response(world.memory, TENANT, stored.id)  # type: ignore[arg-type]
        assert msgspec.json.decode(msgspec.json.encode(found)) == told, "it is not stored as it was told"


def _check_text(world: World, response: UUID, log: list[Event]) -> None:
    """What was told is what the engine said, neither more nor less than the tokens that were counted."""
    told = "".join(event.body for event in log if event.kind)
    answer, parser = answer_of(response), SpelledParser()
    counted = world.memory.metered[response].output_tokens
    broken = BREAK_PARSER in answer[:counted]
    readable = answer[: answer.index(BREAK_PARSER) if broken else counted]
    said = "".join(delta.text for delta in parser.feed(readable))  # type: ignore[union-attr]
    rest = "".join(delta.text for delta in parser.close())  # type: ignore[union-attr]
    # What came in one piece with a token that cannot be read is lost with it.
    assert (said + rest).startswith(told) if broken else told in (said, said + rest), (told, said, rest)
    if world.memory.rows[response].stored.status == "completed":
        assert counted == len(answer_of(response))


def _check_replays(world: World, response: UUID, frames: list[bytes]) -> None:
    stored_responses._streams.clear()  # readers of a stream that was lost may hold it
    for first in {0, len(frames) // 2, len(frames) - 1}:
        reader = StreamReader(MemoryDatabase(world.memory), TENANT, response)  # type: ignore[arg-type]
        assert reader.read(first).frames == frames[first:]


def _check_unstored(world: World) -> None:
    """Of responses that are kept nowhere, all who read them from the start read the same."""
    unstored = [client for client in world.clients if not client.stored]
    for one, other in itertools.combinations(unstored, 2):
        if one.response == other.response:
            short = min(len(one.frames), len(other.frames))
            assert one.frames[:short] == other.frames[:short]
    for client in unstored:
        numbers = [msgspec.json.decode(read.split(b"data: ")[1])["sequence_number"] for read in client.frames]
        assert numbers == list(range(len(numbers)))
