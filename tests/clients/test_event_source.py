"""A browser's EventSource behind nginx as it comes: events arrive one by one, and none twice or never.

`make clients` brings both: npm's `eventsource`, which follows the browsers' standard, and Debian's nginx.
"""

import json
from pathlib import Path

import httpx

from tests.clients.test_clients import CLIENTS, HERE, needs, run
from tests.fix_server import PACED, StartServer
from tests.support.nginx import UNPACKED, Nginx, program
from tests.support.server_process import MODEL, free_port

TOKENS, CUT = 200, 100
"""Four seconds of them; the first connection ends after half."""


@needs(Path(program() or UNPACKED))
@needs(CLIENTS / "node_modules" / "eventsource")
def test_an_event_source_behind_nginx_gets_each_event_once_and_at_once(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(**PACED)
    script = CLIENTS / "event_source.mjs"
    script.write_text((HERE / "event_source.mjs").read_text())
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    plain = f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {server.url}; }} }}"
    nginx = Nginx(tmp_path, port, plain)
    nginx.start()
    try:
        body = {"model": MODEL, "input": "Hello", "background": True, "stream": False}
        made = httpx.post(f"{url}/v1/responses", json={**body, "max_output_tokens": TOKENS}).json()
        told = json.loads(run("node", script, f"{url}/v1/responses/{made['id']}?stream=true", str(CUT)))
    finally:
        nginx.stop()
    numbers = [number for number, _ in told["seen"]]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > CUT
    assert told["opened"] == 3, "cut, gone on, and told that there is no more"
    assert len({at for _, at in told["seen"][:CUT]}) > 20, "one by one, not in the lumps of a buffer"
