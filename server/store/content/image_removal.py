"""Removal of pictures that no item names any more, in small transactions of their own.

A statement that deletes items marks their uses as removed (`item_images.removed_at`); it neither locks nor
deletes a picture, whose bytes may take long. `remove_unused`, of any replica, deletes marked uses with the
picture's row locked, and with the last use the picture. So the last use of a picture stays marked until the
picture goes, whichever transactions end at the same time. Nothing here waits for a lock: rows that others
have locked are left to a later batch.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Row, text

from server.store.content.storage_usage import IMAGE_BYTES, count_removed

MARK_USES: Final = "update item_images set removed_at = clock_timestamp() where removed_at is null and "
"""SQL that marks uses as removed; their condition follows."""
MAX_BATCH_USES = 1000
MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Bytes of pictures that a batch deletes, unless one picture has more."""

_CLAIM = text(
    """
    select tenant, owner, item_id, digest from item_images
    where removed_at is not null limit :limit for update skip locked
    """
)
_CLAIMED = """
    unnest(cast(:tenants as text[]), cast(:owners as uuid[]), cast(:item_ids as text[]),
        cast(:digests as bytea[])) as c (tenant, owner, item_id, digest)
"""
_IN_USE = """
    exists (select from item_images o
        where o.tenant = t.tenant and o.digest = t.digest and o.removed_at is null)
"""
_IMAGES = "unnest(cast(:tenants as text[]), cast(:digests as bytea[])) as t (tenant, digest)"
_LOCK = text(
    f"""
    select tenant, digest from images
    where (tenant, digest) in (select t.tenant, t.digest from {_IMAGES})
    order by tenant, digest for no key update skip locked
    """  # noqa: S608 - constants of ours
)
"""Keeps other removals away, but not new uses, which lock FOR KEY SHARE."""
_LOCK_UNUSED = text(
    f"""
    select tenant, digest, size from images
    where (tenant, digest) in (select t.tenant, t.digest from {_IMAGES} where not {_IN_USE})
    order by tenant, digest for update skip locked
    """  # noqa: S608 - constants of ours
)
_DELETE_USES = text(
    f"""
    delete from item_images u using {_CLAIMED}
    where (u.tenant, u.owner, u.item_id, u.digest) = (c.tenant, c.owner, c.item_id, c.digest)
    """  # noqa: S608 - a constant of ours
)
_STILL_USED = text(f"select t.tenant, t.digest from {_IMAGES} where {_IN_USE}")  # noqa: S608
_DELETE_IMAGES = text(
    count_removed(
        f"""
        delete from images i using {_IMAGES}
        where (i.tenant, i.digest) = (t.tenant, t.digest) and not exists (
            select from item_images u where u.tenant = i.tenant and u.digest = i.digest)
        returning i.tenant, {IMAGE_BYTES} as bytes
        """  # noqa: S608 - constants of ours
    )
)


class UseKey(NamedTuple):
    """The primary key of a use."""

    tenant: str
    owner: UUID
    item_id: str
    digest: bytes


class RemovedImages(NamedTuple):
    """The result of one batch."""

    images: int
    """Pictures that were deleted."""
    more: bool
    """Whether another batch may find more."""


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
    named = _ImageKeys({(use.tenant, use.digest) for use in claimed})
    locked = _ImageKeys((row[0], row[1]) for row in connection.execute(_LOCK, named.arrays()))
    unused = _within_bytes(connection.execute(_LOCK_UNUSED, locked.arrays()).all(), max_bytes)
    used = {(row[0], row[1]) for row in connection.execute(_STILL_USED, locked.arrays())}
    done = [use for use in claimed if (use.tenant, use.digest) in used | set(unused)]
    if not done:
        return RemovedImages(0, False)
    connection.execute(_DELETE_USES, _use_arrays(done))
    deleted = connection.execute(_DELETE_IMAGES, unused.arrays()).scalar_one() if unused else 0
    return RemovedImages(deleted, len(claimed) == max_uses or len(done) < len(claimed) or deleted > 0)


def _use_arrays(uses: Sequence[UseKey]) -> dict[str, list[Any]]:
    """Keys of uses as parameters of a statement."""
    names = ("tenants", "owners", "item_ids", "digests")
    columns = (list(column) for column in zip(*uses, strict=True))
    return dict(zip(names, columns, strict=True))


class _ImageKeys(list[tuple[str, bytes]]):
    """Primary keys of pictures."""

    def arrays(self) -> dict[str, list[Any]]:
        """The keys as parameters of a statement."""
        return {"tenants": [tenant for tenant, _ in self], "digests": [digest for _, digest in self]}


def _within_bytes(images: Sequence[Row[Any]], max_bytes: int) -> _ImageKeys:
    """The keys of the first pictures, whose bytes fit into a batch."""
    chosen = _ImageKeys()
    total = 0
    for image in images:
        total += image.size
        if chosen and total > max_bytes:
            break
        chosen.append((image.tenant, image.digest))
    return chosen
