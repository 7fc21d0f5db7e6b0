"""A server with keys of two tenants and some history, and a browser that reports what a page does wrong."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.fix_server import PACED
from tests.support.server_process import MODEL, ServerProcess, run_command

CHROMIUM = os.environ.get("TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = (
    "<script>window.hurt=1</script><img src=x onerror=window.hurt=1> \u202eevil\u202c [x](javascript:hurt)"
)
"""What a caller may put into every field that the console shows."""
CALL = {"type": "function_call", "call_id": "call_1", "name": "weather"}


@dataclass(frozen=True)
class Operated:
    """A server with keys, and what its tenants have stored."""

    server: ServerProcess
    database_url: str
    admin: str
    metadata: str
    reader: str
    """A key of a tenant, without the console's scopes."""
    responses: dict[str, str]
    """Ids by what they are."""

    @property
    def url(self) -> str:
        return self.server.url

    def client(self, key: str) -> OpenAI:
        return OpenAI(base_url=self.server.api, api_key=key, max_retries=0)

    @contextmanager
    def visit(self, key: str | None = None) -> Iterator[httpx.Client]:
        """A client that is signed in with the key, and follows no redirect."""
        with httpx.Client(base_url=self.url, timeout=30) as client:
            if key is not None:
                answer = client.post("/console/sign-in", data={"key": key})
                assert answer.status_code == 303, answer.text
            yield client


@pytest.fixture(scope="module")
def operated(module_database: str) -> Iterator[Operated]:
    def make_key(tenant: str, *flags: str) -> str:
        made = run_command("keys", "create", "--tenant", tenant, *flags, database_url=module_database)
        return made.stdout.strip()

    keys = {
        "admin": make_key("ops", "--scopes", "admin,read,write"),
        "metadata": make_key("ops", "--scopes", "metadata"),
        "reader": make_key("acme"),
    }
    server = ServerProcess(module_database, settings={**PACED, "scripted_step_seconds": 0.01})
    try:
        server.start()
        yield Operated(server, module_database, **keys, responses=_store(server, keys))
    finally:
        server.stop()


def _store(server: ServerProcess, keys: dict[str, str]) -> dict[str, str]:
    """Responses of two tenants: a chain, a call of a function, hostile texts, one that was cut, a chat."""
    found: dict[str, str] = {}
    with OpenAI(base_url=server.api, api_key=keys["reader"], max_retries=0) as client:

        def create(name: str, **more: Any) -> None:
            body = {"model": MODEL, "input": "Hello", "max_output_tokens": 24, **more}
            found[name] = client.responses.create(**body).id

        create("first", input="The weather in Paris", user="ana", metadata={"team": "red"})
        create("second", previous_response_id=found["first"], user="ana")
        create(
            "hostile",
            input=HOSTILE,
            user=HOSTILE[:100],
            metadata={"<b>": HOSTILE[:200]},
            instructions=HOSTILE,
        )
        create(
            "call",
            input=[
                {"role": "user", "content": "Call it"},
                {
                    "type": "function_call",
                    "call_id": "call_1",
                    "name": "weather",
                    "arguments": '{"city":"Rome"}',
                },
                {"type": "function_call_output", "call_id": "call_1", "output": HOSTILE},
            ],
            tools=[{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
        )
        chat: Any = [{"role": "user", "content": "A chat"}]
        client.chat.completions.create(model=MODEL, messages=chat, max_tokens=16, store=True)
    with OpenAI(base_url=server.api, api_key=keys["admin"], max_retries=0) as client:
        found["ops"] = client.responses.create(model=MODEL, input="Of ops", max_output_tokens=16).id
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: `apt-get install chromium`, or TEST_CHROMIUM")
    sync_api = pytest.importorskip("playwright.sync_api", reason="it drives the browser")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, operated: Operated) -> Iterator[OpenPage]:
    """Opens a page of the console as who has the key. What its console says is an error in the end, but for
    lines with what `forgives` says.
    """
    contexts: list[Any] = []
    said: list[str] = []

    def open_it(path: str, key: str | None = None, forgives: str = "\0", **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **settings)
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("console", lambda message: said.extend([message.text] * (forgives not in message.text)))
        page.on("pageerror", lambda error: said.append(str(error)))
        sign_in = f"{operated.url}/console/sign-in"
        context.request.post(sign_in, form={"key": key or operated.admin}, max_redirects=0)
        page.goto(f"{operated.url}{path}")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert said == []
