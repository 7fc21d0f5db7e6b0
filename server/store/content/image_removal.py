"""Removal of pictures that no item names any more, in small transactions of their own.

A statement that deletes items marks their uses as removed (`item_images.removed_at`); it neither locks nor
deletes a picture, whose bytes may take long. `remove_unused`, of any replica, deletes marked uses with the
picture's row locked, and with the last use the picture. So the last use of a picture stays marked until the
picture goes, whichever transactions end at the same time. Nothing here waits for a lock: rows that others
have locked are left to a later batch.
"""

from operator import attrgetter
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from server.store import arrays
from server.store.content.images import batches
from server.store.content.storage_usage import IMAGE_BYTES, removing

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
    """The primary key of a use."""

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
_LOCK = text(f"""
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
    locked = arrays.fields(ImageKey, connection.execute(_LOCK, arrays.fields(ImageKey, named)).all())
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
