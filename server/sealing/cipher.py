"""What clients keep for us and must neither read nor change: text, sealed for a tenant and a purpose. Pure.

AES-256-SIV (RFC 5297), an AEAD that gives the same bytes for the same input. So a run that is rebuilt after a
crash tells the same item, and no counter has to be kept. A sealed text is `hf1.<key id>.<base64url>`: the
version, which key it takes, and 16 bytes derived from where the text stood, then the ciphertext. The tenant
and the purpose are authenticated with it: for anybody else, and for anything else, it is not there.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Literal, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

Purpose = Literal["reasoning", "compaction", "context"]
TagPurpose = Literal["approval", "session", "tenant"]
KEY_BYTES = 32
TAG_BYTES = 16
"""Of a tag: 128 bits, which nobody guesses."""
_VERSION = "hf1"
_PLACE_BYTES = 16
_END = b"\n"
"""After the text, because SIV seals no empty one."""


def make_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


class Seal:
    """The keys of a server: the first seals, all of them open. Thread-safe."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_key_id(key): _derive_key(key) for key in keys}
        self._tag_keys = [_derive_key(key, b"holdfast tag 1", 32) for key in keys]
        self._current = _key_id(keys[0])

    @classmethod
    def of_this_process(cls) -> Self:
        """One whose key nobody else has: what it seals is foreign to every other process."""
        return cls([make_key()])

    def seal(self, purpose: Purpose, tenant: str, place: str, text: str) -> str:
        """`place` tells equal texts apart: the id of the item that carries the text."""
        salt = hashlib.sha256(place.encode()).digest()[:_PLACE_BYTES]
        about = [purpose.encode(), tenant.encode(), salt]
        sealed = AESSIV(self._keys[self._current]).encrypt(text.encode() + _END, about)
        return f"{_VERSION}.{self._current}.{base64.urlsafe_b64encode(salt + sealed).decode()}"

    def open(self, purpose: Purpose, tenant: str, sealed: str) -> str | None:
        """The text; None for what these keys did not seal for this tenant and purpose."""
        version, _, rest = sealed.partition(".")
        key_id, _, body = rest.partition(".")
        key = self._keys.get(key_id)
        if version != _VERSION or key is None:
            return None
        try:
            content = base64.b64decode(body.encode(), altchars=b"-_", validate=True)
            salt, ciphertext = content[:_PLACE_BYTES], content[_PLACE_BYTES:]
            text = AESSIV(key).decrypt(ciphertext, [purpose.encode(), tenant.encode(), salt])
        except (InvalidTag, binascii.Error, ValueError):
            return None
        return text.removesuffix(_END).decode()

    def tag(self, purpose: TagPurpose, *parts: str) -> str:
        """Hex digits that only these keys make of the parts: the same on all replicas and after a restart."""
        return _tag(self._tag_keys[0], purpose, parts)

    def is_tag(self, tag: str, purpose: TagPurpose, *parts: str) -> bool:
        """Whether one of these keys made the tag of these parts."""
        given = tag.encode(errors="replace")
        return any(hmac.compare_digest(given, _tag(key, purpose, parts).encode()) for key in self._tag_keys)


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"holdfast seal key id" + key).hexdigest()[:8]


def _derive_key(key: bytes, use: bytes = b"holdfast seal 1", length: int = 64) -> bytes:
    return HKDF(SHA256(), length=length, salt=None, info=use).derive(key)


def _tag(key: bytes, purpose: TagPurpose, parts: Sequence[str]) -> str:
    """HMAC-SHA256, cut to TAG_BYTES. Each part's length stands before it, so that none runs into the next."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in (purpose, *parts)]
    message = b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
    return hmac.digest(key, message, "sha256")[:TAG_BYTES].hex()
