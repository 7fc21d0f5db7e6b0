"""Settings of access tokens: the OpenID Connect issuer that signs them, and the claims that are read."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from server.caller import SCOPES, Scope
from server.configuration.origins import is_loopback
from server.configuration.setting_groups import Settings
from server.errors import ConfigError


def check_issuer(settings: Settings) -> None:
    """Raises ConfigError for an issuer without an audience, or whose keys could be replaced on their way."""
    if settings.oidc_issuer is None:
        if settings.oidc_audience is not None:
            raise ConfigError("oidc-audience needs oidc-issuer, whose tokens are checked for it.")
        return
    if not settings.oidc_audience:
        raise ConfigError("oidc-issuer needs oidc-audience: a token for other services must not be accepted.")
    read_scope_values(settings.oidc_scopes)
    if not is_safe_url(settings.oidc_issuer):
        raise ConfigError(
            "oidc-issuer must be an https URL without user name, query or fragment; http only on loopback."
        )


def is_safe_url(url: str) -> bool:
    """Whether what is fetched from there is from there: https, or http on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if not host or parts.username is not None or parts.query or parts.fragment or not url.isprintable():
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def read_scope_values(text: str) -> Mapping[str, Scope]:
    """The scope by the value of a claim that gives it. Raises ConfigError."""
    scopes: dict[str, Scope] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = entry.partition("=")
        scope = next((known for known in SCOPES if known == name), None)
        if scope is None or not value or value in scopes:
            raise ConfigError(
                f"oidc-scopes must be scope=value with a scope of {', '.join(SCOPES)} and each value once, "
                f"not {entry!r}."
            )
        scopes[value] = scope
    if not scopes:
        raise ConfigError("oidc-scopes must name the value of at least one scope.")
    return scopes
