"""Which connection is closed for a new one, and whose request is next."""

import asyncio
import socket
from functools import partial

import pytest

from server.http.asgi.client_connections import (
    Arrival,
    Arrivals,
    ClientConnection,
    ClientConnections,
    is_health,
)

RESERVED = 2


class Clients:
    """Open connections by name, and those that were closed, in order."""

    def __init__(self, most: int = 6) -> None:
        self.closed: list[str] = []
        self.connections = ClientConnections(most, RESERVED, is_health)
        self._named: dict[str, ClientConnection] = {}

    def __getitem__(self, name: str) -> ClientConnection:
        return self._named[name]

    def add(self, *names: str) -> None:
        for name in names:
            self._named[name] = self.connections.add(partial(self.closed.append, name))

    def add_with_key(self, *names: str, idle: bool) -> None:
        self.add(*names)
        for name in names:
            self[name].set_idle(False)
            self[name].set_authenticated(True)
            if idle:
                self[name].set_idle(True)

    def close_all(self) -> list[str]:
        """The connections in the order in which they are closed for others."""
        while self.connections.close_one():
            pass
        return self.closed


def test_the_oldest_without_a_key_is_closed_whatever_it_does() -> None:
    clients = Clients()
    clients.add("reading", "silent", "asking", "new")
    clients["reading"].set_idle(False)
    clients["asking"].set_idle(False)
    clients["asking"].set_idle(True)
    clients["reading"].set_idle(True)
    assert clients.close_all() == ["reading", "silent", "asking", "new"]


def test_arrivals_do_not_drive_out_what_is_served_nor_are_they_driven_out() -> None:
    clients = Clients(most=9)
    clients.add("s1", "s2", "s3", "a1", "a2", "a3", "a4")
    for name in ("s1", "s2", "s3"):
        clients[name].begin(has_turn=True)
    assert clients.close_all() == ["a1", "s1", "a2", "s2", "a3", "s3", "a4"]


def test_a_connection_with_a_key_is_closed_only_between_two_requests() -> None:
    clients = Clients()
    clients.add_with_key("working", idle=False)
    clients.add_with_key("idle", "idle too", idle=True)
    clients.add("stranger")
    assert clients.close_all() == ["idle", "idle too", "stranger"]
    assert not clients.connections.close_one()
    clients["working"].set_idle(True)
    assert clients.close_all()[-1] == "working"


def test_idle_connections_with_a_key_are_spared_while_more_than_the_reserved_have_none() -> None:
    clients = Clients()
    clients.add_with_key("idle", idle=True)
    clients.add("1", "2", "3", "4")
    assert clients.close_all() == ["1", "2", "idle", "3", "4"]


def test_a_key_that_is_not_valid_any_more_protects_nothing() -> None:
    clients = Clients()
    clients.add_with_key("revoked", idle=False)
    before = clients.connections.busy
    clients["revoked"].set_authenticated(False)
    assert (before, clients.connections.busy) == (True, False)
    assert clients.close_all() == ["revoked"]


def test_each_request_has_to_show_its_key() -> None:
    clients = Clients()
    clients.add_with_key("of a proxy", "idle", idle=True)
    clients["of a proxy"].set_idle(False)
    assert not clients.connections.busy
    assert clients.close_all() == ["idle", "of a proxy"]


def test_who_has_no_key_does_not_keep_the_server_busy() -> None:
    clients = Clients()
    clients.add("reading")
    clients["reading"].set_idle(False)
    assert not clients.connections.busy


def test_what_has_ended_makes_room() -> None:
    clients = Clients(most=2)
    clients.add("1")
    clients.add_with_key("2", idle=True)
    before = clients.connections.is_full
    for _ in range(2):
        clients.connections.remove(clients["1"])
    assert (before, clients.connections.is_full) == (True, False)
    assert clients.close_all() == ["2"]


def test_connections_between_two_requests_are_closed_before_the_end_and_new_ones_are_not() -> None:
    clients = Clients()
    clients.add("new", "asked")
    clients.add_with_key("idle", idle=True)
    clients.add_with_key("working", idle=False)
    clients["asked"].set_idle(False)
    clients["asked"].set_idle(True)
    clients.connections.close_between_requests()
    assert clients.closed == ["asked", "idle"]
    clients["working"].set_idle(True)
    assert clients.closed == ["asked", "idle", "working"]
    clients.connections.close_before_requests()
    assert clients.closed[-1] == "new"


async def _order(clients: Clients, targets: dict[str, bytes], closed: str = "") -> list[str]:
    """The names in the order in which their requests begin, all having come at once."""
    begun: list[str] = []

    async def ask(name: str, target: bytes) -> None:
        clients[name].set_idle(False)
        await clients[name].wait_for_turn(target, b"")
        begun.append(name)

    tasks = [asyncio.ensure_future(ask(name, target)) for name, target in targets.items()]
    await asyncio.sleep(0)
    if closed:
        clients.connections.remove(clients[closed])
    await asyncio.gather(*tasks, return_exceptions=True)
    return begun


@pytest.mark.parametrize("closed", ["", "2"])
def test_requests_without_a_key_take_turns_the_newest_first_and_health_waits_for_none(closed: str) -> None:
    clients = Clients()
    clients.add("1", "2", "3", "probe")
    clients.add_with_key("known", idle=True)
    targets = dict.fromkeys(("1", "2", "3", "known"), b"/openapi.json") | {"probe": b"/health/live"}
    begun = asyncio.run(_order(clients, targets, closed))
    assert begun == ["known", "probe", "3", *(["2"] if not closed else []), "1"]


def test_parts_of_bodies_without_a_key_take_turns_until_the_key_is_known() -> None:
    async def read() -> list[str]:
        clients, order = Clients(), list[str]()
        clients.add("1", "2", "late", "closed")
        clients.add_with_key("known", idle=False)

        async def part(name: str) -> None:
            await clients[name].wait_to_read()
            order.append(name)

        for name in ("1", "2", "late", "closed"):
            clients[name].set_idle(False)
        tasks = [asyncio.ensure_future(part(name)) for name in ("late", "1", "2", "closed", "known")]
        await asyncio.sleep(0)
        clients["late"].set_authenticated(True)
        clients.connections.remove(clients["closed"])
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert asyncio.run(read()) == ["known", "late", "2", "1"]


@pytest.mark.parametrize(
    ("sent", "target", "authorization"),
    [
        ("GET /a HTTP/1.1\r\nhost: x\r\nAUTHORIZATION:  Bearer Me \r\n\r\n", b"/a", b"Bearer Me"),
        ("GET /a HTTP/1.1\r\nx-authorization: Bearer me\r\n\r\n", b"/a", b""),
        ("GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nauthorization: Bearer me\r\n\r\n", b"/a", b""),
    ],
    ids=["any case", "another header", "the next request"],
)
def test_an_arrivals_first_request_says_whose_it_is(sent: str, target: bytes, authorization: bytes) -> None:
    client, accepted = socket.socketpair()
    whole: list[Arrival] = []
    arrival = Arrival(accepted, Arrivals(), is_encrypted=False, on_whole=whole.append, on_lost=whole.append)
    with client, accepted:
        client.sendall(sent.encode())
        arrival.read()
        assert [one.target_and_key() for one in whole] == [(target, authorization)]
