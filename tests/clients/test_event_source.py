"""A browser's EventSource behind nginx as it comes: events arrive one by one, and none twice or never.

`make clients` brings both: npm's `eventsource`, which follows the browsers' standard, and Debian's nginx.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.clients.test_clients import CLIENTS, HERE, needs, run
from tests.fix_server import PACED, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, free_port

UNPACKED = CLIENTS / "nginx" / "usr" / "sbin" / "nginx"
NGINX = Path(shutil.which("nginx") or UNPACKED)
TOKENS, CUT = 200, 100
"""Four seconds of them; the first connection ends after half."""


@contextmanager
def behind_nginx(folder: Path, server: str) -> Iterator[str]:
    """The address of an nginx that passes all requests to the server and has no other setting."""
    port = free_port()
    (folder / "nginx.conf").write_text(
        f"""
        daemon off; pid {folder}/pid; error_log stderr;
        events {{}}
        http {{
            access_log off;
            client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
            uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
            server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {server}; }} }}
        }}
        """
    )
    with subprocess.Popen([NGINX, "-p", folder, "-c", folder / "nginx.conf"]) as process:
        try:
            eventually(lambda: answers(f"http://127.0.0.1:{port}/health/ready"), within=30)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(url).status_code == 200
    return False


@needs(NGINX)
@needs(CLIENTS / "node_modules" / "eventsource")
def test_an_event_source_behind_nginx_gets_each_event_once_and_at_once(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(**PACED)
    script = CLIENTS / "event_source.mjs"
    script.write_text((HERE / "event_source.mjs").read_text())
    with behind_nginx(tmp_path, server.url) as url:
        body = {"model": MODEL, "input": "Hello", "background": True, "stream": False}
        made = httpx.post(f"{url}/v1/responses", json={**body, "max_output_tokens": TOKENS}).json()
        told = json.loads(run("node", script, f"{url}/v1/responses/{made['id']}?stream=true", str(CUT)))
    numbers = [number for number, _ in told["seen"]]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > CUT
    assert told["opened"] == 3, "cut, gone on, and told that there is no more"
    assert len({at for _, at in told["seen"][:CUT]}) > 20, "one by one, not in the lumps of a buffer"
