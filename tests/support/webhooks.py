"""Webhook endpoints and ended responses in a database, for tests of what is delivered."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from server.administration import webhook_changes
from server.administration.actor import Actor
from server.administration.webhook_changes import NewSecret
from server.outbound_http.allowed_addresses import AllowedAddresses, AllowedHost, read_allowed
from server.protocol.ids import new_uuid
from server.protocol.webhook_objects import EVENT_TYPES, CreateEndpoint
from server.sealing.cipher import Seal
from server.store.content.responses import ResponseKey
from server.store.database import Connection, Database
from server.store.webhooks import outbox
from tests.support.builders import TENANT, finish, insert_response, make_echo, make_ending

PUBLIC = read_allowed("*")
ACTOR = Actor("user:test")


def receivers(*ports: int) -> AllowedAddresses:
    """Receivers on this machine with these ports, and every public host."""
    local = [AllowedHost("127.0.0.1", port, allows_http=True) for port in ports]
    return AllowedAddresses((*local, *PUBLIC.hosts), (), frozenset({"127.0.0.1"}))


def make_endpoint(
    connection: Connection,
    seal: Seal,
    url: str = "https://hooks.example/a",
    tenant: str = TENANT,
    allowed: AllowedAddresses = PUBLIC,
    **more: Any,
) -> NewSecret:
    """An endpoint of a tenant; by default it gets every type of background responses."""
    chosen = {"name": "test", "event_types": list(EVENT_TYPES), **more}
    request = CreateEndpoint(url=url, **chosen)
    return webhook_changes.create_endpoint(connection, ACTOR, seal, allowed, tenant, request)


def end_response(
    connection: Connection,
    replica: UUID,
    status: str = "completed",
    *,
    tenant: str = TENANT,
    background: bool = True,
    prepare: str = "",
) -> UUID:
    """A response that begins and ends in this transaction, with its deliveries; its id.

    `prepare` is assigned to columns before the end, such as `choice = 0`.
    """
    response = new_uuid()
    insert_response(connection, replica, id=response, tenant=tenant, echo=make_echo(background=background))
    changes = f", {prepare}" if prepare else ""
    connection.exec_driver_sql(
        "update responses set status = 'in_progress', attempt = 1, replica_id = %s"  # noqa: S608 - a test
        f"{changes} where id = %s",
        (replica, response),
    )
    ending = make_ending(status=status, finished_at=datetime.now(UTC))
    finish(connection, tenant, response, replica, 1, ending)
    outbox.enqueue(connection, [ResponseKey(tenant, response)])
    return response


def deliveries(database: Database, columns: str) -> list[tuple[Any, ...]]:
    """Columns of every delivery, oldest first."""
    query = f"select {columns} from webhook_deliveries order by created_at, id"  # noqa: S608 - a test
    with database.begin() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def change(database: Database, statement: str) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(statement)
