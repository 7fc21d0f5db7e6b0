"""An issuer's key set (JWKS): the public keys in it that may verify tokens. Pure.

Only asymmetric algorithms exist here, and a key verifies those of its own kind alone: neither `none` nor an
HMAC over a public key is ever tried.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from jwt import InvalidKeyError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from server.protocol.decode import decode_as

MAX_KEYS = 64
"""Keys of a set; more are not read."""
MAX_KID = 256
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
"""Larger keys take long to verify with."""
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",), "Ed25519": ("EdDSA",)}
ALGORITHMS = frozenset({*_RSA, *(name for names in _CURVES.values() for name in names)})
_PUBLIC_MEMBERS = ("kty", "n", "e", "crv", "x", "y")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key of the issuer, and the algorithms that it may verify."""

    kid: str | None
    key: Any
    algorithms: frozenset[str]


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def read_keys(document: bytes) -> list[SigningKey]:
    """The keys of a set that can verify tokens; others are skipped. Raises ValueError for what is no set."""
    try:
        keys = decode_as(document, _KeySet).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("it is not a set of keys") from error
    found = (_read_key(one) for one in keys[:MAX_KEYS])
    return [key for key in found if key is not None]


def _read_key(jwk: Mapping[str, Any]) -> SigningKey | None:
    kid, use, kind = jwk.get("kid"), jwk.get("use", "sig"), jwk.get("kty")
    if use != "sig" or not (kid is None or (isinstance(kid, str) and len(kid) <= MAX_KID)):
        return None
    algorithms = frozenset(_RSA if kind == "RSA" else _CURVES.get(str(jwk.get("crv")), ()))
    if (only := jwk.get("alg")) is not None:
        algorithms &= {only} if isinstance(only, str) else set()
    if not algorithms:
        return None
    public = {name: jwk[name] for name in _PUBLIC_MEMBERS if name in jwk}
    try:
        key = _read_public_key(kind, public)
    except (InvalidKeyError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    bits = getattr(key, "key_size", MIN_RSA_BITS) if kind == "RSA" else MIN_RSA_BITS
    return SigningKey(kid, key, algorithms) if MIN_RSA_BITS <= bits <= MAX_RSA_BITS else None


def _read_public_key(kind: object, public: dict[str, Any]) -> object:
    match kind:
        case "RSA":
            return RSAAlgorithm.from_jwk(public)
        case "EC":
            return ECAlgorithm.from_jwk(public)
        case "OKP":
            return OKPAlgorithm.from_jwk(public)
        case _:
            raise ValueError(kind)


def select_key(keys: list[SigningKey], kid: str | None, algorithm: str) -> SigningKey | None:
    """The key with that id for that algorithm; without an id the only key for it."""
    fitting = [key for key in keys if algorithm in key.algorithms and kid in (None, key.kid)]
    if kid is None and len(fitting) > 1:
        return None
    return fitting[0] if fitting else None
