"""An issuer of access tokens: its keys, tokens with any claims and headers, its documents over HTTP."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://login.example"
AUDIENCE = "https://api.example"
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
OTHER_KEY = rsa.generate_private_key(65537, 2048)
PUBLIC_PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def jwks(**more: Any) -> bytes:
    """The key set of the issuer."""
    keys = [
        {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "rsa", "use": "sig", **more},
        {**ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True), "kid": "ec"},
        {**OKPAlgorithm.to_jwk(ED_KEY.public_key(), as_dict=True), "kid": "ed"},
    ]
    return json.dumps({"keys": keys}).encode()


def claims(**more: Any) -> dict[str, Any]:
    """Claims that are right; those that are None are left out."""
    now = int(time.time())
    right = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "backend",
        "exp": now + 600,
        "iat": now,
        "tenant": "acme",
        "scope": "openid holdfast:read holdfast:write",
    }
    return {name: value for name, value in {**right, **more}.items() if value is not None}


def token(
    key: Any = RSA_KEY, algorithm: str = "RS256", headers: dict[str, Any] | None = None, **more: Any
) -> str:
    return jwt.encode(
        claims(**more), key, algorithm, {"kid": "rsa", "typ": "at+jwt"} if headers is None else headers
    )


def forged(header: dict[str, Any], signature: bytes = b"x", **more: Any) -> str:
    """A token that no library makes."""
    parts = [json.dumps(header).encode(), json.dumps(claims(**more)).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


class TokenIssuer:
    """The two documents of an issuer on loopback, and what a test makes of them."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.keys = jwks()
        self.configuration: dict[str, object] = {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"}
        self.status = 200
        self.asked: list[str] = []
        """The paths of all requests."""
        self.may_answer = threading.Event()
        """Cleared, it answers nothing."""
        self.may_answer.set()

    def token(self, *arguments: Any, **more: Any) -> str:
        return token(*arguments, **{"iss": self.url, **more})

    def answer(self, path: str) -> bytes:
        self.asked.append(path)
        self.may_answer.wait(30)
        return self.keys if path == "/jwks" else json.dumps(self.configuration).encode()


@contextmanager
def token_issuer() -> Iterator[TokenIssuer]:
    """An issuer that answers until the end."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = issuer.answer(self.path)
            self.send_response(issuer.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that went away
    issuer = TokenIssuer(server.server_port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield issuer
    finally:
        issuer.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()
