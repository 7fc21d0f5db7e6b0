"""What the responses of a WebSocket count for its tenant while they run and are retained."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from server.errors import NotFound
from server.http.handlers import responses
from server.http.websocket.session import PendingResponse, SocketSession
from server.limits.shared_limit import SharedLimit
from server.limits.tenant_limits import DECODED_FACTOR
from server.protocol.responses.items import Item, encode_item
from server.protocol.responses.request import CreateMessage
from tests.support.builders import make_message

BODY = 1000
SIZE = 50
"""Of a message."""
OUTPUT = encode_item(make_message(UUID(int=1), 0, "Hello"))


class ListOfItems(list[Item]):
    """A list that says when it is gone."""


class Admission:
    """Admits every message, or none."""

    def __init__(self) -> None:
        self.rates = SimpleNamespace(look=lambda _caller: None, headers=lambda _caller: {})
        self.read_bytes = 0
        self.refuses = False
        self.prior: list[object] = []
        self.items: list[weakref.ref[ListOfItems]] = []

    def admit(self, _caller: object, _messages: object, **options: object) -> list[object]:
        if self.refuses:
            raise NotFound("gone")
        self.prior.append(options["prior_items"])
        items = ListOfItems([make_message(UUID(int=2), 0, "Hi")])
        self.items.append(weakref.ref(items))
        return [
            SimpleNamespace(items=items, read_bytes=self.read_bytes, id=UUID(int=1), channel=None, begun=None)
        ]

    @property
    def held(self) -> int:
        """How many of the lists that it gave are still there."""
        gc.collect()
        return sum(items() is not None for items in self.items)


class Socket:
    """A session without a connection."""

    def __init__(self, limit: SharedLimit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(responses, "event_stream", lambda *_arguments: None)
        self.admission = Admission()
        self.caller = SimpleNamespace(tenant="ana", require=lambda _scope: None)
        services = SimpleNamespace(
            admission=self.admission,
            config=SimpleNamespace(max_body_bytes=BODY),
            authenticator=SimpleNamespace(authenticate=lambda _websocket: self.caller),
            model=SimpleNamespace(image_source=lambda _tenant: None),
            database=None,
        )
        self.session = SocketSession(
            cast("Any", services), cast("Any", None), cast("Any", self.caller), limit
        )
        self.wanted = cast("PendingResponse", None)

    def begin(self, *, store: bool = False, previous: str | None = None, read_bytes: int = 0) -> None:
        self.admission.read_bytes = read_bytes
        message = CreateMessage(model="model", input="Hi", store=store, previous_response_id=previous)
        self.wanted = PendingResponse(message, SIZE, b"")
        self.session.begin(self.wanted)

    def end(self, name: str, *, status: str = "completed", store: bool = False) -> int:
        """The size of the last event."""
        last = b'{"response": {"id": "%s", "status": "%s", "store": %s, "output": [%s]}}'
        last %= name.encode(), status.encode(), b"true" if store else b"false", OUTPUT
        self.session.end(self.wanted, last)
        return len(last)


@pytest.fixture
def limit() -> SharedLimit:
    return SharedLimit("bytes", total=10 * BODY, per_tenant=10 * BODY)


@pytest.fixture
def socket(limit: SharedLimit, monkeypatch: pytest.MonkeyPatch) -> Socket:
    return Socket(limit, monkeypatch)


def test_a_session_that_ends_while_a_response_is_being_retained_gives_its_bytes_back(
    socket: Socket, limit: SharedLimit
) -> None:
    socket.begin()
    last = socket.end("resp_1")
    assert limit.used("ana") == SIZE + last
    socket.begin()
    socket.session.close()
    socket.end("resp_2")
    socket.begin()
    assert limit.used("ana") == 0


def test_stored_items_that_a_response_goes_on_from_count_as_they_are_decoded_while_it_runs_and_after(
    socket: Socket, limit: SharedLimit
) -> None:
    socket.begin(previous="resp_stored", read_bytes=100)
    assert limit.used("ana") == SIZE + DECODED_FACTOR * 100
    last = socket.end("resp_1")
    assert limit.used("ana") == SIZE + DECODED_FACTOR * 100 + last


def test_a_response_that_goes_on_from_an_unstored_one_counts_its_history_and_its_output(
    socket: Socket, limit: SharedLimit
) -> None:
    socket.begin(read_bytes=100)
    first = socket.end("resp_1")
    before = SIZE + DECODED_FACTOR * 100
    socket.begin(previous="resp_1")
    assert limit.used("ana") == before + first + before + len(OUTPUT) + SIZE
    assert [len(cast("Any", prior or ())) for prior in socket.admission.prior] == [0, 2]


def test_a_stored_message_keeps_no_items(socket: Socket, limit: SharedLimit) -> None:
    socket.begin(store=True, read_bytes=100)
    assert (socket.admission.held, limit.used("ana")) == (0, 0)
    socket.end("resp_1", store=True)
    assert (socket.admission.held, limit.used("ana")) == (0, 0)


@pytest.mark.parametrize("ending", ["failed", "admission", "retained"])
def test_the_input_is_kept_no_longer_than_its_response_runs(
    ending: str, socket: Socket, limit: SharedLimit
) -> None:
    socket.begin()
    assert (socket.admission.held, limit.used("ana")) == (1, SIZE)
    if ending == "admission":
        socket.admission.refuses = True
        with pytest.raises(NotFound):
            socket.begin()
    else:
        last = socket.end("resp_1", status="failed" if ending == "failed" else "completed")
    assert socket.admission.held == 0
    assert limit.used("ana") == (SIZE + last if ending == "retained" else 0)


def test_what_a_tenant_has_no_room_for_runs_and_is_not_retained(socket: Socket, limit: SharedLimit) -> None:
    limit.acquire("ana", 9 * BODY)
    socket.begin(read_bytes=BODY)
    socket.end("resp_1")
    assert (socket.admission.held, limit.used("ana")) == (0, 9 * BODY)


def test_a_connection_drops_its_older_responses_for_one_that_alone_is_too_large(
    socket: Socket, limit: SharedLimit
) -> None:
    for name in ("resp_1", "resp_2"):
        socket.begin()
        socket.end(name)
    socket.begin(read_bytes=BODY)
    last = socket.end("resp_3")
    assert limit.used("ana") == SIZE + DECODED_FACTOR * BODY + last


def test_a_connection_retains_sixteen_responses(socket: Socket, limit: SharedLimit) -> None:
    sizes = []
    socket.session._retained._most = 100 * BODY
    for number in range(20):
        socket.begin()
        sizes.append(SIZE + socket.end(f"resp_{number}"))
    assert limit.used("ana") == sum(sizes[-16:])
