"""Pictures of items, stored once for each tenant by their SHA-256: insert with uses, load, sizes, remove.

A use is a row that says that an item of a response or conversation names a picture. It is inserted in the
item's transaction, which locks the picture's row: `remove_unused` cannot remove the picture meanwhile.

A statement that deletes items marks their uses as removed (`item_images.removed_at`); it neither locks nor
deletes a picture, whose bytes may take long. `remove_unused`, of any replica, deletes marked uses with the
picture's row locked, and with the last use the picture. It waits for no lock: rows that others have locked
are left to a later batch.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from sqlalchemy import Connection, text

from server.store import arrays
from server.store.content.storage_usage import IMAGE_BYTES, adding, removing
from server.store.driver_statements import psycopg_connection

T = TypeVar("T")
MAX_STATEMENT_BYTES = 16 * 1024 * 1024
"""Bytes of pictures that one statement sends, unless one picture has more: statements have a timeout."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A picture as it was sent."""

    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class NewImage:
    """A picture that an item names. `data` is None if the item was read from the store, which has it."""

    digest: bytes
    media_type: str
    data: bytes | None


class ImageUse(NamedTuple):
    """An item of a response or conversation, `owner`, and a picture that it names."""

    tenant: str
    owner: UUID
    item_id: str
    image: NewImage


class ImageRemoved(Exception):
    """The picture of an item that was read from the store has been removed since."""


_LOCK = text("""
    select digest from images where tenant = :tenant and digest = any(cast(:digests as bytea[]))
    order by digest for key share
""")
_INSERT = adding(f"""
    insert into images (tenant, digest, media_type, size, data)
    select :tenant, digest, media_type, size, substring(cast(:joined as bytea) from begin for size)
    from unnest(cast(:digests as bytea[]), cast(:media_types as text[]), cast(:begins as integer[]),
        cast(:sizes as integer[])) as new (digest, media_type, begin, size)
    order by digest
    on conflict (tenant, digest) do update set size = excluded.size where false
    returning tenant, {IMAGE_BYTES} as bytes
""")
"""A picture that another transaction has inserted since is not changed, but its row is locked as by an
UPDATE, so that it is not removed before this one ends."""
_INSERT_USES = text("""
    insert into item_images (tenant, owner, item_id, digest)
    select :tenant, * from unnest(
        cast(:owners as uuid[]), cast(:item_ids as text[]), cast(:digests as bytea[]))
""")


def insert(connection: Connection, tenant: str, owner: UUID, uses: Iterable[tuple[str, NewImage]]) -> None:
    """Inserts uses by an owner's items, and pictures that the tenant has not stored. Raises ImageRemoved."""
    insert_all(connection, [ImageUse(tenant, owner, item_id, image) for item_id, image in uses])


def insert_all(connection: Connection, uses: Sequence[ImageUse]) -> None:
    """`insert` for items of several owners. Without uses there is no statement. Raises ImageRemoved.

    Transactions that lock several pictures lock them in the order of tenant and digest, and lock all of them
    here at once, so that they cannot deadlock.
    """
    for tenant, group in groupby(sorted(uses, key=attrgetter("tenant")), key=attrgetter("tenant")):
        own = list(group)
        _store(connection, tenant, [use.image for use in own])
        named = sorted({(use.owner, use.item_id, use.image.digest) for use in own})
        owners, item_ids, digests = (list(column) for column in zip(*named, strict=True))
        parameters = {"tenant": tenant, "owners": owners, "item_ids": item_ids, "digests": digests}
        connection.execute(_INSERT_USES, parameters)


def _store(connection: Connection, tenant: str, new_images: Iterable[NewImage]) -> None:
    """Locks the pictures, and inserts those that are not there."""
    by_digest: dict[bytes, NewImage] = {}
    for image in new_images:
        if image.data is not None or image.digest not in by_digest:
            by_digest[image.digest] = image
    digests = sorted(by_digest)
    stored = set(connection.scalars(_LOCK, {"tenant": tenant, "digests": digests}))
    missing = [(by_digest[digest], by_digest[digest].data) for digest in digests if digest not in stored]
    with_data = [(image, data) for image, data in missing if data is not None]
    if len(with_data) < len(missing):
        raise ImageRemoved
    for batch in batches(with_data, lambda image: len(image[1]), MAX_STATEMENT_BYTES):
        connection.execute(_INSERT, {"tenant": tenant, **_image_columns(batch)})


def batches(values: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """The values in lists whose sizes together are at most `most`, unless one alone has more. Pure."""
    batch: list[T] = []
    total = 0
    for value in values:
        if batch and total + size(value) > most:
            yield batch
            batch, total = [], 0
        batch.append(value)
        total += size(value)
    if batch:
        yield batch


def _image_columns(images: Sequence[tuple[NewImage, bytes]]) -> dict[str, Any]:
    """The pictures as parameters: joined, as the driver sends one value in binary and an array in hex."""
    sizes = [len(data) for _, data in images]
    return {
        "digests": [image.digest for image, _ in images],
        "media_types": [image.media_type for image, _ in images],
        "begins": [1 + sum(sizes[:index]) for index in range(len(sizes))],
        "sizes": sizes,
        "joined": b"".join(data for _, data in images),
    }


_LOAD = (
    "select digest, media_type, data from images"
    " where tenant = %(tenant)s and digest = any(%(digests)s::bytea[])"
)
_SIZES = text("""
    select digest, size from images
    where tenant = :tenant and digest = any(cast(:digests as bytea[]))
""")


def load(connection: Connection, tenant: str, digests: Collection[bytes]) -> dict[bytes, StoredImage]:
    """The pictures of these digests that are there. The caller bounds their bytes, which `sizes` says."""
    if not digests:
        return {}
    with psycopg_connection(connection) as raw, raw.cursor(binary=True) as cursor:
        cursor.execute(_LOAD, {"tenant": tenant, "digests": list(digests)})
        return {digest: StoredImage(media_type, data) for digest, media_type, data in cursor}


def sizes(connection: Connection, tenant: str, digests: Collection[bytes]) -> dict[bytes, int]:
    """The bytes of those of these pictures that are there."""
    if not digests:
        return {}
    parameters = {"tenant": tenant, "digests": list(digests)}
    return {row.digest: row.size for row in connection.execute(_SIZES, parameters)}


MARK_USES: Final = "update item_images set removed_at = clock_timestamp() where removed_at is null and "
"""SQL that marks uses as removed; their condition follows."""
MAX_BATCH_USES = 1000
MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Bytes of pictures that a batch deletes, unless one picture has more."""


class ImageKey(NamedTuple):
    """The primary key of a picture."""

    tenant: str
    digest: bytes


class UseKey(NamedTuple):
    tenant: str
    owner: UUID
    item_id: str
    digest: bytes


_CLAIM = text("""
    select tenant, owner, item_id, digest from item_images
    where removed_at is not null limit :limit for update skip locked
""")
_IN_USE = """
    exists (select from item_images o
        where o.tenant = t.tenant and o.digest = t.digest and o.removed_at is null)
"""
_IMAGES = arrays.unnest("t", ImageKey)
_LOCK_IMAGES = text(f"""
    select tenant, digest from images
    where (tenant, digest) in (select t.tenant, t.digest from {_IMAGES})
    order by tenant, digest for no key update skip locked
""")
"""Keeps other removals away, but not new uses, which lock FOR KEY SHARE."""
_LOCK_UNUSED = text(f"""
    select tenant, digest, size from images
    where (tenant, digest) in (select t.tenant, t.digest from {_IMAGES} where not {_IN_USE})
    order by tenant, digest for update skip locked
""")
_DELETE_USES = text(f"""
    delete from item_images u using {arrays.unnest("c", UseKey)}
    where (u.tenant, u.owner, u.item_id, u.digest) = (c.tenant, c.owner, c.item_id, c.digest)
""")
_STILL_USED = text(f"select t.tenant, t.digest from {_IMAGES} where {_IN_USE}")
_DELETE_IMAGES = removing(f"""
    delete from images i using {_IMAGES}
    where (i.tenant, i.digest) = (t.tenant, t.digest) and not exists (
        select from item_images u where u.tenant = i.tenant and u.digest = i.digest)
    returning i.tenant, {IMAGE_BYTES} as bytes
""")


class RemovedImages(NamedTuple):
    """The result of one batch."""

    images: int
    more: bool


def remove_unused(
    connection: Connection, *, max_uses: int = MAX_BATCH_USES, max_bytes: int = MAX_BATCH_BYTES
) -> RemovedImages:
    """Deletes pictures whose last use was marked as removed, in the caller's transaction; one batch.

    Uses are deleted with the picture's row locked. So of several removals the one that deletes the last use
    sees that, and a use that is inserted meanwhile either waits or is seen.
    """
    claimed = [UseKey(*row) for row in connection.execute(_CLAIM, {"limit": max_uses})]
    if not claimed:
        return RemovedImages(0, False)
    named = {ImageKey(use.tenant, use.digest) for use in claimed}
    locked = arrays.fields(ImageKey, connection.execute(_LOCK_IMAGES, arrays.fields(ImageKey, named)).all())
    removable = connection.execute(_LOCK_UNUSED, locked).all()
    first_batch = next(batches(removable, attrgetter("size"), max_bytes), [])
    unused = [ImageKey(image.tenant, image.digest) for image in first_batch]
    ready = {*unused, *(ImageKey(*row) for row in connection.execute(_STILL_USED, locked))}
    done = [use for use in claimed if ImageKey(use.tenant, use.digest) in ready]
    if not done:
        return RemovedImages(0, False)
    connection.execute(_DELETE_USES, arrays.fields(UseKey, done))
    keys = arrays.fields(ImageKey, unused)
    deleted = connection.execute(_DELETE_IMAGES, keys).scalar_one() if unused else 0
    return RemovedImages(deleted, len(claimed) == max_uses or len(done) < len(claimed) or deleted > 0)
