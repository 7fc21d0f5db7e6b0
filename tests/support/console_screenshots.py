"""Pictures of the console's pages, light and dark, wide and narrow: `make screenshots`, which needs Chromium.

`python -m tests.support.console_screenshots FOLDER` starts a server of the demo model with a Postgres of its
own, lets two tenants ask it a few things, and photographs each page.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from openai import OpenAI
from playwright.sync_api import Page, sync_playwright

from tests.support.fake_mcp import running_fakes
from tests.support.server_process import MODEL, NEW_PROCESS, ServerProcess, run_command

CHROMIUM = os.environ.get("TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
WIDTHS = {1280: 900, 390: 844}
SCHEMES = ("light", "dark")
SETTLE_MS = 700
"""For charts and fragments that scripts ask for."""
ASKED = (
    "My name is Bartholomew.",
    "Count to 12.",
    "Repeat after me: durable means that nothing is lost.",
    "What is my name?",
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
NOTES = {"type": "mcp", "server_label": "notes", "require_approval": "always"}
"""Its calls wait for an approval."""


def make_history(api: str, keys: dict[str, str]) -> str:
    """Chains, calls, chats and a cancelled response of two tenants; the id of the one to show."""
    shown = ""
    for tenant, key in keys.items():
        with OpenAI(base_url=api, api_key=key) as client:
            for user, team in (("ana", "red"), ("bob", "blue")):
                previous = None
                for question in ASKED:
                    made = client.responses.create(
                        model=MODEL,
                        input=question,
                        previous_response_id=previous,
                        user=user,
                        metadata={"team": team, "tenant": tenant},
                    )
                    previous = made.id
            shown = previous or shown
            for tools in ([WEATHER], [NOTES]):
                called: Any = {"tools": tools, "tool_choice": "required"}
                client.responses.create(model=MODEL, input="Weather in Oslo?", **called)
            client.responses.create(model=MODEL, input="Count to 90.", max_output_tokens=20)
            client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hello!"}], store=True
            )
            begun = client.responses.create(model=MODEL, input="Count to 500.", background=True)
            client.responses.cancel(begun.id)
    return shown


def pages(response: str, own: str, tenant: str) -> dict[str, str]:
    """Addresses by the names of their pictures; `own` is a response of the key's tenant."""
    return {
        "history": "/console/history",
        "response": f"/console/responses/{response}",
        "timeline": f"/console/responses/{response}#timeline",
        "live": "/console/live",
        "usage": "/console/usage?by=tenant",
        "tenants": "/console/tenants",
        "tenant": f"/console/tenants/{tenant}",
        "approvals": "/console/approvals",
        "trail": "/console/trail",
        "sql": "/console/sql",
        "playground": f"/console/playground?response={own}",
    }


def photograph(url: str, key: str, addresses: dict[str, str], folder: Path) -> Iterator[str]:
    """Writes the pictures; what the browser's console says comes out."""
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme, (width, height) in product(SCHEMES, WIDTHS.items()):
            context = browser.new_context(
                color_scheme=scheme,  # type: ignore[arg-type]  # one of its literals
                viewport={"width": width, "height": height},
            )
            context.request.post(f"{url}/console/sign-in", form={"key": key}, max_redirects=0)
            page = context.new_page()
            page.on("console", lambda message: said.append(message.text))
            for name, address in addresses.items():
                take(page, f"{url}{address}", folder / f"{name}-{scheme}-{width}.png")
            context.close()
        browser.close()
    yield from said


def take(page: Page, address: str, path: Path) -> None:
    page.goto(address)
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=path)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-console-") as data, running_fakes(1) as (notes,):
        settings = {"data_dir": data, "tool_server": f"notes={notes.url}"}
        server = ServerProcess(settings=settings, module=NEW_PROCESS)
        try:
            server.start()
            keys = {name: _make_key(data, name) for name in ("acme", "globex")}
            admin = _make_key(data, "ops", "--scopes", "admin,read,write")
            response = make_history(server.api, keys)
            own = make_history(server.api, {"ops": admin})
            for line in photograph(server.url, admin, pages(response, own, "acme"), folder):
                sys.stderr.write(f"{line}\n")
        finally:
            server.stop()


def _make_key(data: str, tenant: str, *flags: str) -> str:
    made = run_command("keys", "create", "--tenant", tenant, *flags, "--data-dir", data)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
