"""`python -m tests.support.engine_server --port P --control-port C`: a fake vLLM server, which may misbehave.

It serves `/inference/v1/generate` and what else a client of vLLM 0.32 needs, from one event loop, all streams
in steps as an engine does. A second port takes commands and says what has happened (`EngineServerProcess`).
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from time import time

from tests.support.fake_vllm import VERSION, Refused, error_body, read_call, read_model, to_json
from tests.support.fake_vllm_connection import Connection
from tests.support.fake_vllm_engine import FakeEngine, Stream
from tests.support.fake_vllm_faults import ENDLESS, ERRORS, SILENT, STREAM, Fault, answers, events

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def serve(connection: Connection, method: str, path: str, body: bytes) -> None:
    engine = connection.engine
    fault = engine.take_fault(path)
    if fault is not None and fault.kind.isdecimal():
        status = int(fault.kind)
        connection.answer(status, error_body(status, "A fault was ordered.", ERRORS.get(status, "Error")))
    elif fault is not None and fault.kind in answers():
        connection.write(answers()[fault.kind])
        if fault.kind in ENDLESS:
            connection.flood(ENDLESS[fault.kind])
        elif fault.kind not in SILENT:
            connection.close()
    elif engine.api_key and path != "/health" and connection.key != f"Bearer {engine.api_key}":
        connection.answer(401, to_json({"error": "Unauthorized"}))
    else:
        try:
            _answer(connection, method, path, body, fault)
        except Refused as refused:
            connection.answer(refused.status, refused.body)


def _answer(connection: Connection, method: str, path: str, body: bytes, fault: Fault | None) -> None:
    engine = connection.engine
    model = engine.model
    match method, path:
        case "POST", "/inference/v1/generate":
            assert fault is None or fault.kind in (STREAM | events() | ENDLESS), fault
            call = read_call(body, model)
            if call.stream:
                connection.write(STREAM_HEAD)
            connection.stream = Stream(engine, connection, call, fault)
            engine.start(connection.stream, str(json.loads(body).get("cache_salt")))
        case "POST", "/inference/v1/abort_requests":
            connection.answer(200, b"")
            engine.abort(json.loads(body).get("request_ids"))
        case "GET", "/v1/models":
            engine.counts["probes"] += 1
            connection.answer(200, model.models(int(time())))
        case "GET", "/version":
            connection.answer(200, to_json({"version": VERSION}))
        case "GET", "/health":
            connection.answer(engine.health, b"")
        case "GET", "/metrics":
            connection.answer(200, engine.metrics(), "text/plain; version=1.0.0; charset=utf-8")
        case "POST", "/detokenize":
            connection.answer(200, to_json({"prompt": model.text(json.loads(body)["tokens"])}))
        case "POST", "/tokenize":
            sent = json.loads(body)
            ids = model.tokenizer.encode(sent["prompt"], add_special_tokens=False).ids
            words = [model.tokenizer.id_to_token(token) for token in ids]
            texts = words if sent.get("return_token_strs") else None
            counts = {"count": len(ids), "max_model_len": model.context_length}
            connection.answer(200, to_json({**counts, "tokens": ids, "token_strs": texts}))
        case _:
            connection.answer(404, to_json({"detail": "Not Found"}))


def control(connection: Connection, _method: str, path: str, body: bytes) -> None:
    try:
        connection.answer(200, connection.engine.command(path, json.loads(body or b"{}")))
    except (AssertionError, TypeError, ValueError) as error:
        connection.answer(400, to_json({"detail": repr(error)}))


async def run(options: argparse.Namespace) -> None:
    adapters = tuple(options.adapter or ())
    model = read_model(options.model, options.name, options.length, options.context_length, adapters)
    model.root = options.root
    engine = FakeEngine(
        model, step_seconds=options.step_seconds, step_tokens=options.step_tokens, api_key=options.api_key
    )
    loop, host = asyncio.get_running_loop(), options.host
    await loop.create_server(
        lambda: Connection(engine, control, is_data=False), "127.0.0.1", options.control_port
    )
    await loop.create_server(lambda: Connection(engine, serve), host, options.port, backlog=1024)
    print(f"Ready: http://{host}:{options.port}", flush=True)  # noqa: T201
    await engine.run()


def main() -> int:
    parser = argparse.ArgumentParser(description="A fake vLLM server.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--control-port", type=int, required=True)
    parser.add_argument("--root", default="/model", help="where it says that its weights are")
    parser.add_argument(
        "--model", type=Path, default=Path("demo/holdfast-demo"), help="folder of a tokenizer"
    )
    parser.add_argument("--name", default="holdfast-demo", help="the model's name")
    parser.add_argument("--adapter", action="append", help="the name of a LoRA adapter")
    parser.add_argument("--length", type=int, default=64, help="tokens of an answer, a stop token included")
    parser.add_argument("--context-length", type=int, default=8192)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--step-tokens", type=int, default=1, help="tokens of each stream in a step")
    parser.add_argument("--api-key")
    asyncio.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
