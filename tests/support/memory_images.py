"""What the store's SQL of pictures means, over a database in memory."""

from collections.abc import Collection, Sequence

from server.store.content.images import ImageUse, StoredImage
from tests.support.memory import Memory


def insert_all(at: Memory, uses: Sequence[ImageUse]) -> None:
    for tenant, _, _, image in uses:
        key = (tenant, image.digest)
        assert image.data is not None or key in at.images, "a picture that is not there is named"
        if key not in at.images and image.data is not None:
            at.put(at.images, key, StoredImage(image.media_type, image.data))


def load(at: Memory, tenant: str, digests: Collection[bytes]) -> dict[bytes, StoredImage]:
    return {digest: at.images[tenant, digest] for digest in digests if (tenant, digest) in at.images}


def sizes(at: Memory, tenant: str, digests: Collection[bytes]) -> dict[bytes, int]:
    return {digest: len(image.data) for digest, image in load(at, tenant, digests).items()}
