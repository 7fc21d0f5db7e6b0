"""The sender against receivers that behave badly, on a real Postgres."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from server.outbound_http.guarded_http import Lookup
from server.protocol.ids import response_id, webhook_id
from server.protocol.list_pages import PageRequest
from server.sealing.cipher import Seal
from server.store.database import Database
from server.store.webhooks import endpoints, outbox
from server.webhooks import delivery_threads as sending
from server.webhooks.delivery_attempt import WebhookClient
from server.webhooks.delivery_threads import WebhookSender
from tests.support.builders import register
from tests.support.eventually import eventually
from tests.support.webhook_receiver import Arrival, Reply, WebhookReceiver
from tests.support.webhooks import change, deliveries, end_response, make_endpoint, receivers

SEAL = Seal.of_this_process()
SECONDS = 10.0
"""For an attempt."""


@contextmanager
def running(database: Database, client: WebhookClient, first_pause: float = 0.02) -> Iterator[WebhookSender]:
    sender = WebhookSender(database, register(database), client, first_pause)
    sender.start()
    try:
        sender.thread.wake()
        yield sender
    finally:
        sender.stop()


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as started:
        yield started
    assert started.arrivals.problems == []


def client_to(*started: WebhookReceiver) -> WebhookClient:
    return WebhookClient(SEAL, receivers(*(one.port for one in started)), SECONDS)


def add(database: Database, receiver: WebhookReceiver, tenant: str = "acme", path: str = "") -> None:
    with database.begin() as connection:
        allowed = receivers(receiver.port)
        made = make_endpoint(connection, SEAL, f"{receiver.url}{path}", tenant, allowed)
    receiver.secret = made.secret


def end(database: Database, count: int = 1, tenant: str = "acme") -> list[str]:
    replica = register(database)
    with database.begin() as connection:
        return [response_id(end_response(connection, replica, tenant=tenant)) for _ in range(count)]


def all_delivered(database: Database) -> bool:
    return all(row[0] for row in deliveries(database, "delivered_at is not null"))


def test_an_event_arrives_signed_with_standard_webhooks_headers(
    database: Database, receiver: WebhookReceiver
) -> None:
    add(database, receiver)
    (response,) = end(database)
    with running(database, client_to(receiver)) as sender:
        eventually(lambda: all_delivered(database))
        assert sender.stats.delivered == 1
    (arrival,) = receiver.arrivals.all
    event = receiver.unwrap(arrival)
    assert (event.type, event.data.id) == ("response.completed", response)
    ((delivery, status),) = deliveries(database, "id, last_status")
    assert arrival.headers["webhook-id"] == webhook_id(delivery)
    assert arrival.headers["content-type"] == "application/json"
    assert arrival.headers["user-agent"].startswith("Holdfast/")
    assert status == 200


def test_a_receiver_that_fails_gets_the_same_event_again(
    database: Database, receiver: WebhookReceiver
) -> None:
    receiver.decide = lambda _arrival: Reply(200 if len(receiver.arrivals.all) > 3 else 500)
    add(database, receiver)
    end(database)
    with running(database, client_to(receiver)) as sender:
        eventually(lambda: all_delivered(database))
        eventually(lambda: sender.stats.delivered == 1)
        assert sender.stats.failed == 3
    assert len({arrival.message_id for arrival in receiver.arrivals.all}) == 1
    assert len({arrival.body for arrival in receiver.arrivals.all}) == 1
    assert deliveries(database, "attempts, last_error") == [(4, None)]


@pytest.mark.parametrize("location", ["http://127.0.0.1:1/", "http://169.254.169.254/latest/meta-data"])
def test_a_redirect_is_a_failure_and_is_not_followed(
    database: Database, receiver: WebhookReceiver, location: str
) -> None:
    receiver.decide = lambda _arrival: Reply(307, {"location": location})
    add(database, receiver)
    end(database)
    with running(database, client_to(receiver), first_pause=3600):
        eventually(lambda: deliveries(database, "last_error") == [("HTTP status 307",)])
    assert len(receiver.arrivals.all) == 1


def test_a_receiver_that_answers_410_is_disabled_and_gets_nothing_more(
    database: Database, receiver: WebhookReceiver
) -> None:
    receiver.decide = lambda _arrival: Reply(410)
    add(database, receiver)
    end(database)
    with running(database, client_to(receiver)) as sender:
        eventually(lambda: sender.stats.failed == 1)
        eventually(lambda: [one.disabled_at is not None for one in listed(database)] == [True])
        end(database)
        assert len(deliveries(database, "id")) == 1, "a disabled endpoint gets no deliveries"
    assert listed(database)[0].disabled_reason == "The receiver answered 410 Gone."
    actions = "select action from audit_trail where action = 'webhook.disable'"
    with database.begin() as connection:
        assert len(connection.exec_driver_sql(actions).all()) == 1


def listed(database: Database) -> list[endpoints.StoredEndpoint]:
    with database.begin() as connection:
        return endpoints.list_page(connection, None)


def gigabytes(_arrival: Arrival) -> Reply:
    return Reply(200, {"content-length": "5000000000"}, (bytes(1 << 20),) * 5000)


def large_head(_arrival: Arrival) -> Reply:
    return Reply(200, {f"x-{number}": "x" * 60000 for number in range(100)})


def test_an_answer_of_gigabytes_costs_nothing(database: Database, receiver: WebhookReceiver) -> None:
    receiver.decide = gigabytes
    add(database, receiver)
    end(database)
    with running(database, client_to(receiver)):
        eventually(lambda: all_delivered(database))


def test_an_answer_with_a_huge_head_is_a_failure(database: Database, receiver: WebhookReceiver) -> None:
    receiver.decide = large_head
    add(database, receiver)
    end(database)
    with running(database, client_to(receiver), first_pause=3600):
        eventually(lambda: deliveries(database, "last_error") == [("The answer is not HTTP.",)])


@contextmanager
def raw_server(piece: bytes, pause: float) -> Iterator[int]:
    """Accepts connections and sends a piece again and again; its port."""
    stopping = threading.Event()

    def drip(connection: socket.socket) -> None:
        with closing(connection):
            while not stopping.wait(pause):
                try:
                    connection.sendall(piece)
                except OSError:
                    return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        stopping.set()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "piece", [b"", b"H", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["silent", "drips", "continues"]
)
def test_a_receiver_that_never_answers_is_given_a_second_and_not_more(
    database: Database, piece: bytes
) -> None:
    with raw_server(piece, 0.05) as port:
        client = WebhookClient(SEAL, receivers(port), 0.4)
        with database.begin() as connection:
            make_endpoint(connection, SEAL, f"http://127.0.0.1:{port}/", allowed=receivers(port))
        end(database)
        with running(database, client, first_pause=3600):
            eventually(lambda: deliveries(database, "last_error is not null") == [(True,)], within=10)
        ((error, status),) = deliveries(database, "last_error, last_status")
        assert status is None
        assert error in ("There was no answer within 0.4 seconds.", "The answer is not HTTP.")


def test_receivers_that_hang_do_not_delay_others(database: Database, receiver: WebhookReceiver) -> None:
    with raw_server(b"", 1) as port:
        client = WebhookClient(SEAL, receivers(port, receiver.port), 30.0)
        with database.begin() as connection:
            for number in range(20):
                url, tenant = f"http://127.0.0.1:{port}/{number}", f"t{number}"
                make_endpoint(connection, SEAL, url, tenant, receivers(port))
        for number in range(20):
            end(database, 3, tenant=f"t{number}")
        change(database, "update webhook_deliveries set attempts = 1")
        add(database, receiver, tenant="quick")
        end(database, 10, tenant="quick")
        with running(database, client) as sender:
            eventually(lambda: sender.stats.delivered == 10)
            eventually(lambda: sender.stats.under_way == sending.SENDERS // 2)
            end(database, 10, tenant="quick")
            sender.thread.wake()
            eventually(lambda: sender.stats.delivered == 20)
            assert sender.stats.under_way == sending.SENDERS // 2
        assert receiver.arrivals.received.total() == 20


def rebinding(addresses: list[str]) -> Lookup:
    """A name that leads to these addresses, one after the other."""

    async def look_up(_host: str, _port: int) -> list[str]:
        return [addresses.pop(0) if len(addresses) > 1 else addresses[0]]

    return look_up


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1"])
def test_a_name_that_changes_to_a_private_address_is_not_connected_to(
    database: Database, receiver: WebhookReceiver, address: str
) -> None:
    client = replace(client_to(receiver), lookup=rebinding([address]))
    with database.begin() as connection:
        make_endpoint(connection, SEAL, "https://hooks.example/")
    end(database)
    with running(database, client, first_pause=3600):
        eventually(lambda: deliveries(database, "attempts, last_error is not null") == [(1, True)])
    ((error,),) = deliveries(database, "last_error")
    assert error == "hooks.example does not resolve to an allowed address."
    assert receiver.arrivals.all == []


def test_a_secret_that_was_sealed_with_a_lost_key_sends_nothing(
    database: Database, receiver: WebhookReceiver
) -> None:
    add(database, receiver)
    end(database)
    client = WebhookClient(Seal.of_this_process(), receivers(receiver.port), SECONDS)
    with running(database, client, first_pause=3600):
        eventually(lambda: deliveries(database, "last_error is not null") == [(True,)])
    assert receiver.arrivals.all == []


def test_a_stopping_sender_waits_for_its_attempts_and_stores_how_they_went(
    database: Database, receiver: WebhookReceiver
) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def decide(_arrival: Arrival) -> Reply:
        arrived.set()
        assert go_on.wait(10)
        return Reply()

    receiver.decide = decide
    add(database, receiver)
    end(database)
    client = replace(client_to(receiver), seconds=10.0)
    with running(database, client) as sender:
        assert arrived.wait(10)
        sender.thread.request_stop()
        go_on.set()
    assert all_delivered(database)


def test_an_endpoint_that_is_disabled_gets_what_waited_when_it_is_enabled_again(
    database: Database, receiver: WebhookReceiver
) -> None:
    add(database, receiver)
    end(database)
    (endpoint,) = listed(database)
    with database.begin() as connection:
        endpoints.set_disabled(connection, endpoint.id, "because")
    with running(database, client_to(receiver)) as sender:
        sender.send_due()
        assert receiver.arrivals.all == []
        with database.begin() as connection:
            endpoints.set_disabled(connection, endpoint.id, None)
        sender.thread.wake()
        eventually(lambda: all_delivered(database))
    with database.begin() as connection:
        page = outbox.list_page(connection, "acme", endpoint.id, "delivered", PageRequest(limit=10))
        assert len(page) == 1


def test_all_that_waits_for_the_last_endpoint_is_given_up_when_it_is_deleted(
    database: Database, receiver: WebhookReceiver
) -> None:
    add(database, receiver)
    (endpoint,) = listed(database)
    change(
        database,
        "insert into webhook_deliveries (tenant, endpoint_id, event_id, response_id, type, give_up_at,"  # noqa: S608
        f" next_attempt_at) select 'acme', '{endpoint.id}', gen_random_uuid(), gen_random_uuid(),"
        " 'response.completed', now() + interval '3 days', now() + interval '1 hour'"
        " from generate_series(1, 2500)",
    )
    with database.begin() as connection:
        endpoints.delete_endpoint(connection, endpoint.id)
    with running(database, client_to(receiver)) as sender:
        eventually(lambda: sender.stats.given_up == 2500)
    found = set(deliveries(database, "last_error, next_attempt_at is null"))
    assert found == {("the endpoint was deleted", True)}


def test_a_throttling_receiver_is_left_alone_for_as_long_as_it_asks(
    database: Database, receiver: WebhookReceiver
) -> None:
    receiver.decide = lambda _arrival: Reply(429, {"retry-after": "999999999"})
    add(database, receiver)
    end(database, 5)
    with running(database, client_to(receiver)) as sender:
        eventually(lambda: sender.stats.failed == 1)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 0.2)
    assert len(receiver.arrivals.all) == 1
    waits = deliveries(database, "next_attempt_at > clock_timestamp() + interval '59 minutes'")
    assert [row[0] for row in waits].count(True) == 1
