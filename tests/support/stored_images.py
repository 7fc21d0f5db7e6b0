"""Responses with pictures, as the store has them."""

import base64
import hashlib
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from server.protocol.ids import new_uuid
from server.protocol.input_images import content_of
from server.protocol.responses.items import ContentPart, InputImage, InputText, Message
from server.store.content import deletion, images, storage_usage, stored_items
from server.store.content.item_rows import NewItem, stored_item
from server.store.database import Connection, Database
from tests.support.builders import CREATED, TENANT, finish, insert_response, make_ending

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20


def digest_of(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def url_of(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def content(data: bytes) -> str:
    return content_of(digest_of(data))


def picture_item(response: UUID, index: int, *pictures: bytes) -> NewItem:
    parts: list[ContentPart] = [InputText("Look:"), *(InputImage(url_of(data)) for data in pictures)]
    return stored_item(Message(f"msg_{response.hex}i{index}", "completed", "user", parts))


def store(
    connection: Connection,
    replica: UUID,
    *pictures: bytes,
    tenant: str = TENANT,
    lifetime: timedelta | None = None,
    previous: UUID | None = None,
) -> UUID:
    """A response whose only input item has these pictures, ended."""
    node = new_uuid()
    insert_response(connection, replica, id=node, tenant=tenant, lifetime=lifetime, previous=previous)
    add(connection, node, [picture_item(node, 0, *pictures)], tenant)
    finish(connection, tenant, node, replica, 1, make_ending(finished_at=CREATED))
    return node


def add(connection: Connection, node: UUID, new: Sequence[NewItem], tenant: str = TENANT) -> None:
    stored_items.insert_items_of(connection, stored_items.INPUT, [(tenant, node, new)])
    images.insert(connection, tenant, node, [(item.id, image) for item in new for image in item.images])


def count(database: Database, table: str = "images", tenant: str = TENANT) -> int:
    with database.begin() as connection:
        statement = f"select count(*) from {table} where tenant = %(tenant)s"  # noqa: S608 - names of ours
        found: int = connection.exec_driver_sql(statement, {"tenant": tenant}).scalar_one()
    return found


def stored_bytes(database: Database, tenant: str = TENANT) -> int:
    with database.begin() as connection:
        return storage_usage.total(connection, tenant)


def delete(database: Database, node: UUID, tenant: str = TENANT) -> None:
    with database.begin() as connection:
        assert deletion.delete(connection, tenant, node) is False
