"""`Seal`: encrypts text that clients keep and must not read or change, and makes MACs.

AES-256-SIV (RFC 5297), a deterministic AEAD: a run that is rebuilt after a crash produces the same item,
and no nonce has to be stored. A sealed text is `hf1.<key id>.<base64url>`; the encoded bytes are 16 bytes
of salt, derived from the item's id, and the ciphertext. Tenant and purpose are associated data, so a
sealed text cannot be opened for another tenant or purpose.
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

Purpose = Literal["reasoning", "compaction", "context", "webhook", "console"]
TagPurpose = Literal["approval", "session", "tenant", "console"]
KEY_BYTES = 32
TAG_BYTES = 16
_VERSION = "hf1"
_SALT_BYTES = 16
_END = b"\n"
"""Appended to the text, because SIV does not encrypt an empty one."""


def make_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


class Seal:
    """The keys of a server: the first one encrypts, all of them decrypt. Thread-safe."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_key_id(key): _derive_key(key) for key in keys}
        self._tag_keys = [_derive_key(key, b"holdfast tag 1", 32) for key in keys]
        self._current = _key_id(keys[0])

    @classmethod
    def of_this_process(cls) -> Self:
        """A seal with a random key, whose texts no other process can open."""
        return cls([make_key()])

    def seal(self, purpose: Purpose, tenant: str, item_id: str, text: str) -> str:
        """Encrypt. `item_id` is the item that carries the text: equal texts differ in different items."""
        salt = hashlib.sha256(item_id.encode()).digest()[:_SALT_BYTES]
        about = [purpose.encode(), tenant.encode(), salt]
        sealed = AESSIV(self._keys[self._current]).encrypt(text.encode() + _END, about)
        return f"{_VERSION}.{self._current}.{base64.urlsafe_b64encode(salt + sealed).decode()}"

    def open(self, purpose: Purpose, tenant: str, sealed: str) -> str | None:
        """Decrypt. None if no key of this seal encrypted it for this tenant and purpose."""
        version, _, rest = sealed.partition(".")
        key_id, _, body = rest.partition(".")
        key = self._keys.get(key_id)
        if version != _VERSION or key is None:
            return None
        try:
            content = base64.b64decode(body.encode(), altchars=b"-_", validate=True)
            salt, ciphertext = content[:_SALT_BYTES], content[_SALT_BYTES:]
            text = AESSIV(key).decrypt(ciphertext, [purpose.encode(), tenant.encode(), salt])
        except (InvalidTag, binascii.Error, ValueError):
            return None
        return text.removesuffix(_END).decode()

    def tag(self, purpose: TagPurpose, *parts: str) -> str:
        """The MAC of the parts in hex, the same on all replicas with these keys."""
        return _tag(self._tag_keys[0], purpose, parts)

    def is_tag(self, tag: str, purpose: TagPurpose, *parts: str) -> bool:
        """Whether the tag is the MAC of the parts with one of the keys."""
        encoded = tag.encode(errors="replace")
        return any(hmac.compare_digest(encoded, _tag(key, purpose, parts).encode()) for key in self._tag_keys)


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"holdfast seal key id" + key).hexdigest()[:8]


def _derive_key(key: bytes, use: bytes = b"holdfast seal 1", length: int = 64) -> bytes:
    return HKDF(SHA256(), length=length, salt=None, info=use).derive(key)


def _tag(key: bytes, purpose: TagPurpose, parts: Sequence[str]) -> str:
    """HMAC-SHA256 truncated to TAG_BYTES. Length prefixes keep the parts apart."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in (purpose, *parts)]
    message = b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
    return hmac.digest(key, message, "sha256")[:TAG_BYTES].hex()
