"""A database that lost what clients had received: who resumes is refused, who is connected hears of it.

The server of these tests runs nothing. Another replica, which runs the responses, is the test.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import httpx
import pytest

from server.protocol.ids import parse_response_id
from server.protocol.responses.events import Event, Kind
from server.store import log_append
from server.store.database import Database
from tests.acceptance.error_object import check_error
from tests.support.builders import register
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import Frame, Stream, create, parse, replay

BACKGROUND = {"model": MODEL, "input": "Hello", "background": True}
HELLO = {"model": MODEL, "input": "Hello"}


@pytest.fixture(scope="module")
def server(module_database: str) -> Iterator[ServerProcess]:
    """It accepts responses and generates none."""
    settings = {"engine": "scripted", "role": "api", "lease_seconds": 300}
    process = ServerProcess(module_database, settings=settings)
    process.start()
    yield process
    process.stop()


@dataclass
class Owner:
    """The replica that runs a background response."""

    database: Database
    replica: UUID
    name: str
    attempt: int = 0

    @property
    def response(self) -> UUID:
        found = parse_response_id(self.name)
        assert found is not None
        return found

    def run(self, statement: str, *values: object) -> None:
        with self.database.begin() as connection:
            connection.exec_driver_sql(statement, (*values, self.response))

    def claim(self, attempt: int) -> None:
        """Goes on after what the log has now."""
        self.attempt = attempt
        claimed = "update responses set status = 'in_progress', replica_id = %s, attempt = %s where id = %s"
        self.run(claimed, self.replica, attempt)

    def write(self, first: int, *words: str) -> None:
        numbered = enumerate(words, first)
        self.append(*(Event(number, Kind.OUTPUT_TEXT_DELTA, 0, 0, word) for number, word in numbered))

    def append(self, *events: Event) -> None:
        with self.database.begin() as connection:
            rows = log_append.encode_rows("default", self.response, self.attempt, events, ())
            log_append.append(connection, rows)

    def lose(self, first: int) -> None:
        """The database is as it was before the events from that number on."""
        self.run("delete from response_events_hot where first_seq >= %s and response_id = %s", first)

    def end(self, number: int, *, folded: bool = True) -> None:
        """The end as it is stored, with the log compacted or left as it is."""
        final = {"type": "response.completed", "sequence_number": number, "response": {}}
        self.append(Event(number, Kind.WHOLE, 0, 0, json.dumps(final, separators=(",", ":"))))
        with self.database.begin() as connection:
            ended = "update responses set status = 'completed', replica_id = null, finished_at = now()"
            connection.exec_driver_sql(f"{ended} where id = %s", (self.response,))
            if folded:
                log_append.fold(connection, [("default", self.response)])


@pytest.fixture
def owner(server: ServerProcess, module_database: str) -> Iterator[Owner]:
    """Of a response that is queued."""
    name = httpx.post(f"{server.api}/responses", json=BACKGROUND).json()["id"]
    database = Database(module_database, pool_size=1)
    yield Owner(database, register(database, role="worker"), name)
    database.close()


def received(server: ServerProcess, name: str, count: int) -> list[Frame]:
    """The first events of a client that then goes away."""
    with replay(server.url, name) as stream:
        return stream.take(count)


def resume(server: ServerProcess, name: str, **how: object) -> httpx.Response:
    """How a stream is answered that begins after an event, named by a parameter or a header."""
    last = how.pop("last_event_id", None)
    headers = {} if last is None else {"last-event-id": str(last)}
    params = {"stream": "true", **{key: str(value) for key, value in how.items()}}
    return httpx.get(f"{server.api}/responses/{name}", params=params, headers=headers, timeout=60)


def fork(server: ServerProcess, owner: Owner, *, attempt: int = 2) -> Frame:
    """The last event that a client has received before the database lost it and four others."""
    owner.claim(1)
    owner.write(2, "one ", "two ")
    owner.write(4, "three ", "four ", "five ")
    last = received(server, owner.name, 7)[-1]
    owner.lose(4)
    owner.claim(attempt)
    return last


def test_client_whose_event_another_attempt_has_written_again_is_refused(
    server: ServerProcess, owner: Owner
) -> None:
    last = fork(server, owner)
    owner.write(4, "three ", "four ", "five ")
    for how, param in (
        ({"starting_after": last.id}, "starting_after"),
        ({"last_event_id": last.id}, "Last-Event-ID"),
    ):
        error = check_error(resume(server, owner.name, **how), 400, "invalid_request_error")
        assert (error["code"], error["param"]) == ("stream_forked", param)
        assert error["message"].startswith("Event 6 of this response is not the one")
        assert error["message"].endswith("Read the stream again from the start.")


def test_client_whose_event_has_other_content_by_an_attempt_of_the_same_number_is_refused(
    server: ServerProcess, owner: Owner
) -> None:
    last = fork(server, owner, attempt=1)
    owner.write(4, "drei ", "vier ", "six ")
    answer = resume(server, owner.name, starting_after=last.id)
    assert check_error(answer, 400, "invalid_request_error")["code"] == "stream_forked"


@pytest.mark.parametrize("folded", [True, False])
def test_client_of_an_ended_response_that_has_forked_is_refused(
    server: ServerProcess, owner: Owner, folded: bool
) -> None:
    last = fork(server, owner)
    owner.write(4, "three ", "four ", "five ")
    owner.end(7, folded=folded)
    answer = resume(server, owner.name, last_event_id=last.id)
    assert check_error(answer, 400, "invalid_request_error")["code"] == "stream_forked"
    begun = parse(resume(server, owner.name).content)
    assert [frame.number for frame in begun] == list(range(8))
    assert resume(server, owner.name, starting_after=begun[3].id).content.endswith(
        begun[-1].raw + b"data: [DONE]\n\n"
    )


def test_client_goes_on_by_number_or_id_from_before_the_fork(server: ServerProcess, owner: Owner) -> None:
    fork(server, owner)
    owner.write(4, "drei ", "vier ")
    owner.end(6)
    begun = parse(resume(server, owner.name).content)
    for after in (3, begun[3].id):
        assert parse(resume(server, owner.name, starting_after=after).content) == begun[4:]


@pytest.mark.parametrize("state", ["queued", "running", "ended", "ended, not folded"])
@pytest.mark.parametrize("how", ["starting_after", "last_event_id"])
def test_event_that_is_not_stored_is_refused_with_the_number_of_the_last_one(
    server: ServerProcess, owner: Owner, state: str, how: str
) -> None:
    last = 1
    if state != "queued":
        owner.claim(1)
        owner.write(2, "one ", "two ")
        last = 3
    if state.startswith("ended"):
        owner.end(4, folded=state == "ended")
        last = 4
    for after in (last + 1, last + 1000, f"{last + 1}-1.00000000"):
        error = check_error(resume(server, owner.name, **{how: after}), 400, "invalid_request_error")
        assert error["code"] == "event_not_stored"
        assert error["param"] == ("starting_after" if how == "starting_after" else "Last-Event-ID")
        assert f"the last one that is stored is event {last}." in error["message"]


def test_events_missing_in_the_log_of_an_ended_response_are_passed_over(
    server: ServerProcess, owner: Owner
) -> None:
    owner.claim(1)
    owner.write(2, "one ", "two ")
    owner.write(6, "five ")
    owner.end(7, folded=False)
    frames = parse(resume(server, owner.name).content)
    assert [frame.number for frame in frames] == [0, 1, 2, 3, 6, 7]
    for frame, rest in ((frames[3], frames[4:]), (frames[4], frames[5:])):
        assert parse(resume(server, owner.name, starting_after=frame.id).content) == rest
    answer = resume(server, owner.name, starting_after=4)
    assert check_error(answer, 400, "invalid_request_error")["code"] == "stream_forked"


def reading(server: ServerProcess, owner: Owner) -> tuple[Stream, list[Frame]]:
    """A client that stays, and has five words of the first attempt."""
    stream = replay(server.url, owner.name)
    seen = stream.take(2)
    owner.claim(1)
    owner.write(2, "one ", "two ")
    seen += stream.take(2)
    owner.write(4, "three ", "four ", "five ")
    return stream, seen + stream.take(3)


@pytest.mark.parametrize(
    "words", [("three ", "four ", "five "), ("three ", "four ", "five ", "six ", "seven ")]
)
def test_connected_client_hears_of_a_fork(
    server: ServerProcess, owner: Owner, words: tuple[str, ...]
) -> None:
    stream, seen = reading(server, owner)
    with stream:
        owner.lose(4)
        owner.claim(2)
        owner.write(4, *words)
        owner.write(4 + len(words), "more ")
        rest = parse(stream.read()[len(b"".join(frame.raw for frame in seen)) :])
    assert [frame.event for frame in rest] == ["error"]
    assert (rest[0].id, rest[0].json["code"]) == (None, "stream_forked")


@pytest.mark.parametrize("end", [5, 9])
def test_connected_client_hears_of_a_fork_at_the_end(server: ServerProcess, owner: Owner, end: int) -> None:
    stream, seen = reading(server, owner)
    with stream:
        owner.lose(4)
        owner.claim(2)
        owner.write(4, *["word "] * (end - 4))
        owner.end(end)
        rest = parse(stream.read()[len(b"".join(frame.raw for frame in seen)) :])
    assert [frame.json.get("code") for frame in rest] == ["stream_forked"]


def test_connected_client_reads_on_where_nothing_that_it_has_was_lost(
    server: ServerProcess, owner: Owner
) -> None:
    stream, seen = reading(server, owner)
    with stream:
        owner.claim(2)
        owner.write(7, "six ", "seven ")
        seen += stream.take(2)
        owner.end(9)
        seen += list(stream)
    assert [frame.number for frame in seen] == list(range(10))
    assert [frame.id.partition("-")[2][0] for frame in seen if frame.id] == [*"00", *"11111", *"222"]


def test_console_refuses_like_the_api(server: ServerProcess, owner: Owner) -> None:
    last = fork(server, owner)
    owner.write(4, "three ", "four ", "five ")
    address = f"{server.url}/console/responses/{owner.name}/stream"
    answers = [httpx.get(address, headers={"last-event-id": str(one)}) for one in (last.id, 7)]
    assert [answer.status_code for answer in answers] == [400, 400]


def test_resumed_stream_of_a_response_that_ran_here_is_whole(scripted_server: ServerProcess) -> None:
    with create(scripted_server.url, HELLO) as stream:
        frames = parse(stream.read())
    name = frames[0].json["response"]["id"]
    for frame in frames:
        with replay(scripted_server.url, name, frame.id) as rest:
            assert parse(rest.read()) == frames[frame.number + 1 :]


def test_client_that_comes_by_number_after_a_fork_reads_what_is_stored_and_what_follows(
    server: ServerProcess, owner: Owner
) -> None:
    fork(server, owner)
    owner.write(4, "drei ", "vier ")
    with replay(server.url, owner.name, 3) as stream:
        assert [frame.json["delta"] for frame in stream.take(2)] == ["drei ", "vier "]
        owner.write(6, "sechs ")
        assert stream.take(1)[0].json["delta"] == "sechs "
        owner.end(7)
        assert [frame.event for frame in stream] == ["response.completed"]
