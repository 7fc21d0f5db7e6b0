"""The claims of a token: `TokenRules` says what they must be, `read_identity` whom they name. Pure."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from server.caller import TENANT, TOKEN, Scope
from server.configuration.setting_groups.tokens import TokenSettings, check_issuer, read_scope_values
from server.errors import NotAuthenticated

MAX_SUBJECT = 128
"""Characters of a subject that is shown as it is; longer ones are shown as a digest."""
MAX_SCOPE_VALUES = 256
_DIGEST = "sha256:"
_PLAIN = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say."""

    issuer: str
    audience: str
    tenant_claim: str = "tenant"
    scope_claim: str = "scope"
    scopes: Mapping[str, Scope] = field(default_factory=dict)
    """The scope by the value of the scope claim that gives it."""

    @classmethod
    def from_settings(cls, settings: TokenSettings) -> "TokenRules | None":
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
    """Whom a valid token stands for."""

    tenant: str
    key_id: str
    """`token:SUBJECT`, in place of the id of an API key."""
    scopes: frozenset[Scope]


def read_identity(claims: Mapping[str, object], rules: TokenRules) -> TokenIdentity:
    """The identity in the claims of a token whose signature, times, issuer and audience are checked.

    Raises NotAuthenticated.
    """
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
    return frozenset(
        scopes[value] for value in values[:MAX_SCOPE_VALUES] if isinstance(value, str) and value in scopes
    )


def refused(why: str) -> NotAuthenticated:
    return NotAuthenticated(f"The access token is not valid: {why}.")
