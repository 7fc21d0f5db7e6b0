"""`AccessTokens`: whether a bearer's token is valid, by its claims and signature, and whom it stands for.

Follows RFC 9068 and RFC 8725.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jwt

from server.caller import TENANT, TOKEN, Scope
from server.configuration.setting_groups import Settings
from server.configuration.token_settings import check_issuer, read_scope_values
from server.errors import NotAuthenticated
from server.oidc.signing_keys import ALGORITHMS, MAX_KID, SigningKey, SigningKeys, fetch_keys, refused

MAX_SCOPE_VALUES = 256
_DIGEST = "sha256:"
_PLAIN = re.compile(r"[!-~]{1,128}")
"""A subject that is shown as it is; others are shown as a digest."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Rules that a token is checked against."""

    issuer: str
    audience: str
    tenant_claim: str = "tenant"
    scope_claim: str = "scope"
    scopes: Mapping[str, Scope] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: Settings) -> "TokenRules | None":
        """The rules of the settings; None without an issuer. Raises ConfigError."""
        check_issuer(settings)
        if settings.oidc_issuer is None or settings.oidc_audience is None:
            return None
        return cls(
            settings.oidc_issuer,
            settings.oidc_audience,
            settings.oidc_tenant_claim,
            settings.oidc_scope_claim,
            read_scope_values(settings.oidc_scopes),
        )


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """The bearer of a valid token."""

    tenant: str
    key_id: str
    """`token:SUBJECT`, in place of the id of an API key."""
    scopes: frozenset[Scope]


def read_identity(claims: Mapping[str, object], rules: TokenRules) -> TokenIdentity:
    """The identity in the claims of a verified token. Raises NotAuthenticated."""
    if "cnf" in claims:
        raise refused("it is bound to a key of its holder (`cnf`), which a bearer does not prove to have")
    tenant = claims.get(rules.tenant_claim)
    if not isinstance(tenant, str) or not TENANT.fullmatch(tenant):
        raise refused(
            f"its claim '{rules.tenant_claim}' is not the name of a tenant: 1 to 63 of a-z, 0-9, - and _, "
            "with a letter or digit first"
        )
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        raise refused("its claim 'sub' is not a text")
    return TokenIdentity(tenant, key_id_of(subject), _scopes(claims.get(rules.scope_claim), rules.scopes))


def key_id_of(subject: str) -> str:
    """`token:` and the subject, or its digest if it is long, not visible ASCII, or looks like a digest."""
    if _PLAIN.fullmatch(subject) and not subject.startswith(_DIGEST):
        return TOKEN + subject
    return TOKEN + _DIGEST + hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()


def _scopes(claim: object, scopes: Mapping[str, Scope]) -> frozenset[Scope]:
    """The scopes in a text of words or in a list of texts; none in anything else."""
    values = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    texts = [value for value in values[:MAX_SCOPE_VALUES] if isinstance(value, str)]
    return frozenset(scopes[value] for value in texts if value in scopes)


MAX_TOKEN = 16 * 1024
"""Characters of a token."""
LEEWAY_S = 30
"""How far the issuer's clock may differ."""
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""Values of `typ` in a token's header, if it has one: not a logout token, nor a proof."""
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
    def from_settings(cls, settings: Settings) -> "AccessTokens | None":
        """None without an issuer."""
        rules = TokenRules.from_settings(settings)
        return None if rules is None else cls(rules, SigningKeys(partial(fetch_keys, rules.issuer)))

    def verify(self, token: str) -> TokenIdentity:
        """Return the bearer of the token. Raises NotAuthenticated; NotReady or Overloaded without its key."""
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
