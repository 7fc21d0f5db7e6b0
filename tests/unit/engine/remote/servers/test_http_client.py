import asyncio
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from engine.remote.interface import EngineFault, GenerateCall
from engine.remote.protocols.vllm_protocol import VllmProtocol
from engine.remote.servers.http_client import EngineClient
from tests.support.engines import make_request


def headers_of_a_call(trace_parent: str | None) -> Mapping[str, str]:
    """The headers of a call to a server that answers with an error."""
    sent: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.update({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers["content-length"]))
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.handle_request, daemon=True).start()
    request = make_request("a" * 32, [1], 4)

    async def generate() -> None:
        client = EngineClient(
            VllmProtocol(), None, None, 10.0, {request.request_id: trace_parent}.__getitem__
        )
        client.open()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            call = GenerateCall(call_id="c", request=request, tokens=[1], max_tokens=4, seed=1)
            await client.generate(url, "m", call, lambda _chunk: True)
        finally:
            await client.close()

    with pytest.raises(EngineFault):
        asyncio.run(generate())
    server.server_close()
    return sent


def test_a_call_for_a_traced_response_has_its_traceparent() -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    assert headers_of_a_call(parent)["traceparent"] == parent


def test_a_call_for_any_other_has_none() -> None:
    assert "traceparent" not in headers_of_a_call(None)
