"""The headers of calls, which connections are used again, and how silent calls end."""

import asyncio
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from engine.remote import http_client
from engine.remote.engine_protocol import CallFault, GenerateCall, HttpRequest
from engine.remote.http_client import EngineClient
from engine.remote.server_choice import EngineServer
from engine.remote.vllm_protocol import VllmProtocol
from tests.support.engines import make_request
from tests.support.routers import MODEL


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
            await client.generate(EngineServer(url, MODEL), call, lambda _chunk: True)
        finally:
            await client.close()

    with pytest.raises(CallFault):
        asyncio.run(generate())
    server.server_close()
    return sent


def test_a_call_for_a_traced_response_has_its_traceparent() -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    assert headers_of_a_call(parent)["traceparent"] == parent


def test_a_call_for_any_other_has_none() -> None:
    assert "traceparent" not in headers_of_a_call(None)


def test_an_idle_connection_is_not_used_when_the_server_may_be_closing_it() -> None:
    assert http_client.KEEP_ALIVE_SECONDS <= 4  # the servers' own is 5 s
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request, and closes the connection when the next one comes."""
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await reader.read(1)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = EngineClient(VllmProtocol(), None, None, 10.0, keep_alive=0.05)
        client.open()
        try:
            for _ in range(2):
                assert await client.fetch(url, HttpRequest("POST", "/detokenize")) == (200, b"{}")
                await asyncio.sleep(0.1)  # longer than the connection is kept
        finally:
            await client.close()
            server.close()

    asyncio.run(main())


STAGES = {
    "before the head": (b"", False),
    "within a stream": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", False),
    "within an answer": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", True),
    "within an error": (b"HTTP/1.1 500 Error\r\nContent-Length: 9\r\n\r\n{", False),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_call_of_a_silent_server_ends_wherever_it_is(stage: str) -> None:
    sent, score_prompt = STAGES[stage]

    async def main() -> None:
        asked = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent)
            await writer.drain()
            asked.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = EngineClient(VllmProtocol(), None, None, 0.1)
        client.open()
        call = GenerateCall(
            call_id="c",
            request=make_request("a", [1], 4),
            tokens=[1],
            max_tokens=4,
            seed=1,
            score_prompt=score_prompt,
        )
        running = asyncio.create_task(client.generate(EngineServer(url, MODEL), call, lambda _chunk: True))
        try:
            async with asyncio.timeout(20):
                await asked.wait()
                with pytest.raises(CallFault, match="silence") as raised:
                    await running
            assert raised.value.kind == "failed"
        finally:
            running.cancel()
            await client.close()
            server.close()

    asyncio.run(main())


def test_connections_ask_whether_the_other_end_is_there() -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    with http_client._make_socket(address) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
