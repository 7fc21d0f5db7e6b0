"""Access tokens of a real issuer: panva's certified `oidc-provider`, which `make clients` installs."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psycopg
import pytest
from openai import AuthenticationError, OpenAI, PermissionDeniedError

from tests.clients.test_clients import CLIENTS, HERE, needs
from tests.fix_server import Connect, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, free_port
from tests.support.websocket import WebSocket

AUDIENCE = "https://api.example"
pytestmark = needs(CLIENTS / "node_modules" / "oidc-provider")


@contextmanager
def provider(port: int) -> Iterator[str]:
    """The issuer's URL. Every start has new keys."""
    script = CLIENTS / "oidc_provider.mjs"
    script.write_text((HERE / "oidc_provider.mjs").read_text())
    process = subprocess.Popen(
        ["node", script.name, str(port), AUDIENCE],
        cwd=CLIENTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert "ready\n" in iter(process.stdout.readline, "")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def token(issuer: str, client: str = "of-acme", algorithm: str = "RS256", **more: str) -> str:
    """An access token by the grant client_credentials."""
    scope = "holdfast:read holdfast:write"
    answer = httpx.post(
        f"{issuer}/token",
        data={"grant_type": "client_credentials", "scope": scope, **more},
        auth=(client.replace("!", "%21"), f"secret {client}".replace(" ", "%20").replace("!", "%21")),
        headers={"x-algorithm": algorithm},
    )
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["access_token"]
    return found


def is_refused(client: OpenAI) -> bool:
    try:
        client.models.list()
    except AuthenticationError:
        return True
    return False


def test_official_client_works_with_tokens_of_a_real_issuer(
    start_server: StartServer, connect: Connect, database_url: str
) -> None:
    port = free_port()
    with provider(port) as issuer:
        server = start_server(oidc_issuer=issuer, oidc_audience=AUDIENCE)
        made = connect(server, token(issuer)).responses.create(model=MODEL, input="Hello")
        second = connect(server, token(issuer, algorithm="ES256"))
        assert second.responses.retrieve(made.id).output_text == made.output_text
        reader = connect(server, token(issuer, scope="holdfast:read"))
        assert reader.responses.retrieve(made.id).id == made.id
        with pytest.raises(PermissionDeniedError, match="Missing scopes: write"):
            reader.responses.create(model=MODEL, input="Hello")
        with WebSocket(server.url, headers={"Authorization": f"Bearer {token(issuer)}"}) as socket:
            socket.send({"type": "response.create", "model": MODEL, "input": "Hello"})
            assert socket.receive()["type"] == "response.created"
        assert connect(server, token(issuer, "of-umbrella")).models.list().data[0].id == MODEL
        assert is_refused(connect(server, token(issuer, resource="https://other.example")))
        with pytest.raises(AuthenticationError, match="not the name of a tenant"):
            connect(server, token(issuer, "of-nobody!")).models.list()
        old = connect(server, token(issuer))
    assert old.models.list().data  # without its issuer
    with provider(port) as issuer:
        renewed = connect(server, token(issuer))
        eventually(lambda: not is_refused(renewed), within=30)
    with psycopg.connect(database_url) as connection:
        ledger = connection.execute("select distinct tenant, key_id from usage_ledger").fetchall()
    assert ledger == [("acme", "token:of-acme")]
