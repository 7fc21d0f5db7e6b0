"""Tokens that are right, and those that attackers make."""

import base64
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from server.errors import NotAuthenticated
from server.oidc.access_tokens import LEEWAY_S, MAX_TOKEN, key_id_of
from server.oidc.signing_keys import MAX_KEYS, MAX_KID, read_keys
from tests.support.token_issuer import (
    AUDIENCE,
    EC_KEY,
    ED_KEY,
    OTHER_KEY,
    PUBLIC_PEM,
    RSA_KEY,
    claims,
    forged,
    jwks,
    token,
)
from tests.unit.server.oidc.conftest import Verifier

NOW = int(time.time())


def refusal(verifier: Verifier, text: str) -> str:
    with pytest.raises(NotAuthenticated) as caught:
        verifier.verify(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [
        (RSA_KEY, "RS256", "rsa"),
        (RSA_KEY, "RS512", "rsa"),
        (RSA_KEY, "PS256", "rsa"),
        (EC_KEY, "ES256", "ec"),
        (ED_KEY, "EdDSA", "ed"),
        (EC_KEY, "ES256", None),
    ],
)
def test_token_of_the_issuer_names_its_tenant_and_scopes(
    verifier: Verifier, key: Any, algorithm: str, kid: str | None
) -> None:
    identity = verifier.verify(token(key, algorithm, {} if kid is None else {"kid": kid}))
    assert (identity.tenant, identity.key_id) == ("acme", "token:backend")
    assert identity.scopes == {"read", "write"}


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE, "https://other.example"]])
def test_audience_may_be_one_of_several(verifier: Verifier, audience: object) -> None:
    assert verifier.verify(token(aud=audience)).tenant == "acme"


@pytest.mark.parametrize(
    ("scope", "scopes"),
    [
        ("holdfast:read", {"read"}),
        (["holdfast:read", "holdfast:admin", 5], {"read", "admin"}),
        ("read write admin", set()),
        ("", set()),
        (None, set()),
        ({"holdfast:read": True}, set()),
        (7, set()),
    ],
)
def test_scopes_are_those_of_the_claim_and_no_others(
    verifier: Verifier, scope: object, scopes: set[str]
) -> None:
    assert verifier.verify(token(scope=scope)).scopes == scopes


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"exp": NOW - LEEWAY_S - 5}, "expired"),
        ({"exp": None}, "lacks"),
        ({"exp": "soon"}, "malformed"),
        ({"exp": float("inf")}, "malformed"),
        ({"nbf": NOW + 3600}, "time has not come"),
        ({"iat": NOW + 3600}, "time has not come"),
        ({"iss": "https://login.example/"}, "another issuer"),
        ({"iss": None}, "lacks"),
        ({"aud": "https://other.example"}, "another audience"),
        ({"aud": []}, "lacks"),
        ({"aud": [5]}, "another audience"),
        ({"aud": None}, "lacks"),
        ({"sub": None}, "lacks"),
        ({"sub": ""}, "'sub'"),
        ({"cnf": {"jkt": "x"}}, "`cnf`"),
        ({"tenant": None}, "'tenant'"),
        ({"tenant": ""}, "'tenant'"),
        ({"tenant": "ACME"}, "'tenant'"),
        ({"tenant": "a" * 64}, "'tenant'"),
        ({"tenant": "acme\n"}, "'tenant'"),
        ({"tenant": "a\0"}, "'tenant'"),
        ({"tenant": "../default"}, "'tenant'"),
        ({"tenant": "аcme"}, "'tenant'"),  # noqa: RUF001 - a Cyrillic letter
        ({"tenant": ["acme"]}, "'tenant'"),
        ({"tenant": {"name": "acme"}}, "'tenant'"),
        ({"tenant": True}, "'tenant'"),
    ],
)
def test_token_that_says_something_else_is_refused(
    verifier: Verifier, more: dict[str, Any], reason: str
) -> None:
    left_out = {name for name, value in more.items() if value is None}
    text = jwt.encode(
        {name: value for name, value in {**claims(), **more}.items() if name not in left_out},
        RSA_KEY,
        "RS256",
        {"kid": "rsa"},
    )
    assert reason in refusal(verifier, text)


def test_clocks_may_differ_a_little(verifier: Verifier) -> None:
    assert verifier.verify(token(exp=int(time.time()) - 5, nbf=int(time.time()) + 5)).tenant == "acme"


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "HS256", "HS512", "RS1", "", 5, None, ["RS256"]]
)
def test_algorithm_that_proves_nothing_is_never_tried(verifier: Verifier, algorithm: object) -> None:
    for signature in (b"", b"x"):
        assert "algorithm" in refusal(verifier, forged({"alg": algorithm, "kid": "rsa"}, signature))
    assert verifier.issuer.fetches == 0


def test_hmac_with_the_public_key_as_its_secret_is_refused(verifier: Verifier) -> None:
    """The classic confusion: the verifier takes the public key for a shared secret."""
    header, payload = forged({"alg": "HS256", "kid": "rsa"}).split(".")[:2]
    signature = hmac.digest(PUBLIC_PEM, f"{header}.{payload}".encode(), "sha256")
    text = f"{header}.{payload}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
    assert "algorithm" in refusal(verifier, text)


@pytest.mark.parametrize(
    ("key", "algorithm", "kid", "reason"),
    [
        (OTHER_KEY, "RS256", "rsa", "signature"),
        (RSA_KEY, "RS256", "ec", "no such key"),
        (EC_KEY, "ES256", "rsa", "no such key"),
        (RSA_KEY, "RS256", "stranger", "no such key"),
    ],
)
def test_token_of_another_key_is_refused(
    verifier: Verifier, key: Any, algorithm: str, kid: str, reason: str
) -> None:
    assert reason in refusal(verifier, token(key, algorithm, {"kid": kid}))


def test_changed_token_is_refused(verifier: Verifier) -> None:
    header, _, signature = token().split(".")
    payload = base64.urlsafe_b64encode(json.dumps(claims(tenant="other")).encode()).decode().rstrip("=")
    assert "signature" in refusal(verifier, f"{header}.{payload}.{signature}")


@pytest.mark.parametrize(
    "header",
    [
        {"typ": "logout+jwt"},
        {"typ": "dpop+jwt"},
        {"typ": 5},
        {"crit": ["exp"], "exp": 1},
        {"b64": False},
        {"kid": "k" * (MAX_KID + 1)},
        {"kid": 5},
        {"jwk": {"kty": "RSA"}, "kid": "stranger"},
        {"jku": "https://evil.example/jwks", "kid": "stranger"},
        {"x5u": "https://evil.example/x", "kid": "stranger"},
    ],
)
def test_header_that_asks_for_something_else_is_refused(verifier: Verifier, header: dict[str, Any]) -> None:
    assert refusal(verifier, forged({"alg": "RS256", "kid": "rsa", **header}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "é.b.c",
        "x" * 1_000_000,
        ".".join(["x" * 400_000] * 3),
        base64.urlsafe_b64encode(b"[" * 9000).decode() + ".e30.x",
        base64.urlsafe_b64encode(b'{"alg":' + b"[" * 9000).decode() + ".e30.x",
        base64.urlsafe_b64encode(b'{"alg":' + b"1" * 9000 + b"}").decode() + ".e30.x",
        base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"\xff"}').decode() + ".e30.x",
        base64.urlsafe_b64encode(b"null").decode() + ".e30.x",
    ],
    ids=range(14),
)
def test_what_is_no_token_is_refused_at_once(verifier: Verifier, text: str) -> None:
    began = time.process_time()
    assert refusal(verifier, text)
    assert time.process_time() - began < 0.5
    assert verifier.issuer.fetches == 0


def test_token_of_the_largest_size_is_read() -> None:
    assert len(token(filler="x" * 8000)) < MAX_TOKEN < len(token(filler="x" * 13000))


def test_subjects_that_differ_have_ids_that_differ() -> None:
    long = "s" * 200
    assert key_id_of("alice@example.org") == "token:alice@example.org"
    assert key_id_of(long).startswith("token:sha256:")
    assert len(key_id_of(long)) < 80
    subjects = ["a", "a ", "a\0", "ä", "\ud800", long, long + "s", key_id_of(long).removeprefix("token:")]
    ids = {key_id_of(subject) for subject in subjects}
    assert len(ids) == len(subjects)
    assert all(one.isascii() and one.isprintable() for one in ids)


def test_key_set_gives_keys_that_sign_and_are_strong_only() -> None:
    short = rsa.generate_private_key(65537, 1024).public_key()  # noqa: S505 - which is what is refused
    weak = RSAAlgorithm.to_jwk(short, as_dict=True)
    good = json.loads(jwks())["keys"][0]
    document = {
        "keys": [
            {**weak, "kid": "weak"},
            {**good, "kid": "encrypts", "use": "enc"},
            {**good, "kid": "secret", "kty": "oct", "k": "eA"},
            {**good, "kid": 5},
            {**good, "kid": "of HMAC", "alg": "HS256"},
            {**good, "kid": "odd", "n": "!"},
            {**good, "kid": "even", "e": "AA"},
            {**good, "kid": "large", "n": "A" * 4000 + good["n"] * 8},
            {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "off the curve"},
            {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
            {**good, "kid": "one", "alg": "PS256"},
        ]
    }
    (found,) = read_keys(json.dumps(document).encode())
    assert found.kid == "one"
    assert found.algorithms == {"PS256"}


NO_SETS = [b"", b"[]", b"{}", b'{"keys": 5}', b'{"keys": [5]}', b"[" * 100_000, b"\xff"]


@pytest.mark.parametrize("document", NO_SETS, ids=range(len(NO_SETS)))
def test_what_is_no_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match="not a set of keys"):
        read_keys(document)


def test_a_set_of_many_keys_is_read_up_to_a_bound() -> None:
    good = json.loads(jwks())["keys"][1]
    many = json.dumps({"keys": [{**good, "kid": str(index)} for index in range(500)]}).encode()
    assert len(read_keys(many)) == MAX_KEYS
