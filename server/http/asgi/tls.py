"""`ServerCertificate`: the TLS context of the listening socket, and its renewal when the files change."""

import logging
import ssl
from pathlib import Path
from time import monotonic

from server.errors import ConfigError

log = logging.getLogger("holdfast.tls")

HANDSHAKE_SECONDS = 10.0
CHECKED_S = 10.0
"""Least time between two looks at the files."""


class ServerCertificate:
    """A certificate chain and its private key, in PEM, as they are in the files at a new connection.

    A renewed pair that cannot be loaded is logged, and the one before stays: a renewal may be half done.
    """

    def __init__(self, certificate: Path, key: Path, *, checked_s: float = CHECKED_S) -> None:
        """Raises ConfigError if the files are no pair of a certificate and its key."""
        self._paths = (certificate, key)
        self._checked_s = checked_s
        self._checked_at = monotonic()
        try:
            self._changed_at = self._times()
            self._context = self._load()
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"tls-certificate {certificate} and tls-key {key} cannot be used: {error.strerror or error}."
            ) from error

    def context(self) -> ssl.SSLContext:
        """The context for the next connection: TLS 1.2 or later, HTTP/1.1."""
        if monotonic() - self._checked_at >= self._checked_s:
            self._checked_at = monotonic()
            self._reload()
        return self._context

    def _reload(self) -> None:
        try:
            times = self._times()
            if times == self._changed_at:
                return
            self._context = self._load()
            self._changed_at = times
        except OSError as error:
            log.error("the renewed certificate cannot be used: %s", error.strerror or error)
        else:
            log.info("the certificate was renewed")

    def _times(self) -> list[int]:
        return [path.stat().st_mtime_ns for path in self._paths]

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(*self._paths, password=_no_password)
        return context


def _no_password() -> str:
    """Without it OpenSSL would ask at the terminal."""
    raise OSError(0, "the key has a password; give one without")
