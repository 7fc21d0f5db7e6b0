"""`AccessTokens`: whether a bearer's token is valid, and whom it stands for (RFC 9068, RFC 8725)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jwt

from server.configuration.setting_groups.tokens import TokenSettings
from server.errors import NotAuthenticated
from server.oidc.issuer import fetch_keys
from server.oidc.key_set import ALGORITHMS, MAX_KID, SigningKey
from server.oidc.signing_keys import SigningKeys
from server.oidc.token_claims import TokenIdentity, TokenRules, read_identity, refused

MAX_TOKEN = 16 * 1024
"""Characters of a token."""
LEEWAY_S = 30
"""How far the issuer's clock may differ."""
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""What a token's header may call it, if anything: not a logout token, nor a proof."""
_REQUIRED = ["exp", "iss", "aud", "sub"]
_REASONS: list[tuple[type[jwt.PyJWTError], str]] = [
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "its time has not come"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.InvalidIssuerError, "it is of another issuer"),
    (jwt.MissingRequiredClaimError, f"it lacks one of {', '.join(_REQUIRED)}"),
    (jwt.InvalidSignatureError, "its signature is wrong"),
]


class AccessTokens:
    """Verifies tokens of one issuer. Thread-safe."""

    def __init__(self, rules: TokenRules, keys: SigningKeys) -> None:
        self._rules = rules
        self._keys = keys

    @classmethod
    def from_settings(cls, settings: TokenSettings) -> "AccessTokens | None":
        """None without an issuer."""
        rules = TokenRules.from_settings(settings)
        return None if rules is None else cls(rules, SigningKeys(partial(fetch_keys, rules.issuer)))

    def verify(self, token: str) -> TokenIdentity:
        """Whom the token stands for. Raises NotAuthenticated; NotReady or Overloaded without its key."""
        check_form(token)
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise refused("it is not a JSON Web Token") from None
        kid, algorithm = _read_header(header)
        return read_identity(self._decode(token, self._keys.find(kid, algorithm), algorithm), self._rules)

    def _decode(self, token: str, key: SigningKey, algorithm: str) -> Mapping[str, object]:
        try:
            claims: dict[str, object] = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                leeway=LEEWAY_S,
                options={"require": _REQUIRED},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            reasons = (reason for kind, reason in _REASONS if isinstance(error, kind))
            raise refused(next(reasons, "it is malformed")) from None
        return claims


def check_form(token: str) -> None:
    """Raises NotAuthenticated for what cannot be a token."""
    if not token:
        raise NotAuthenticated("Send an API key or an access token: `Authorization: Bearer <key or token>`.")
    if len(token) > MAX_TOKEN:
        raise refused(f"it is longer than {MAX_TOKEN} characters")
    if token.count(".") != 2 or not token.isascii():
        raise refused("it is not a JSON Web Token")


def _read_header(header: Mapping[str, Any]) -> tuple[str | None, str]:
    """The id of the key and the algorithm."""
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise refused(f"its algorithm is none of {', '.join(sorted(ALGORITHMS))}")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise refused("it is no access token, by its `typ`")
    if "crit" in header or header.get("b64", True) is not True:
        raise refused("its header has extensions that are not known here")
    if not (kid is None or (isinstance(kid, str) and len(kid) <= MAX_KID)):
        raise refused("its `kid` is no text, or too long")
    return kid, algorithm
