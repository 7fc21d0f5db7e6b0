"""Fetches an issuer's keys by OpenID Connect Discovery: its configuration, then its key set."""

import msgspec

from server.configuration.setting_groups.tokens import is_safe_url
from server.oidc.key_set import SigningKey, read_keys
from server.outbound_http.allowed_addresses import Refused, allow_host_of
from server.outbound_http.guarded_http import FetchLimits, Unreachable, fetch
from server.protocol.decode import decode_as

FETCH = FetchLimits(size=512 * 1024, seconds=4.0, redirects=0)
"""Of each of the two documents."""
_CONFIGURATION = "/.well-known/openid-configuration"


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str


def fetch_keys(issuer: str) -> list[SigningKey]:
    """The issuer's keys. Blocks for at most twice FETCH.seconds. Raises ValueError with a reason."""
    try:
        found = decode_as(_get(issuer.rstrip("/") + _CONFIGURATION), _Discovery)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("its configuration has no issuer and jwks_uri") from None
    if found.issuer != issuer:
        raise ValueError(f"its configuration is that of the issuer {found.issuer[:200]!r}")
    if not is_safe_url(found.jwks_uri):
        raise ValueError("its jwks_uri is neither https nor on loopback")
    return read_keys(_get(found.jwks_uri))


def _get(url: str) -> bytes:
    """What is at a URL of the operator's issuer, at any address."""
    try:
        answer = fetch(url, allow_host_of(url), FETCH)
    except (Refused, Unreachable) as error:
        raise ValueError(f"{url[:200]}: {error}") from error
    if answer.status != 200:
        raise ValueError(f"{url[:200]} answered with status {answer.status}")
    return answer.body
