"""`FakeEngine`: the calls of the fake vLLM server, generated in steps, its counts, and how it misbehaves."""

import asyncio
import os
from collections import deque
from dataclasses import asdict
from time import monotonic, time
from typing import Any

from tests.support.fake_vllm import Call, FakeModel, PrefixCache, to_json
from tests.support.fake_vllm_connection import Connection, chunk
from tests.support.fake_vllm_faults import ENDLESS, Fault, events

MAX_RECORDS = 10_000
COUNTS = ("requests", "tokens", "finished", "aborted", "disconnected", "probes")


class FakeEngine:
    """All calls of one server, generated in steps on the event loop."""

    def __init__(
        self, model: FakeModel, *, step_seconds: float, step_tokens: int, api_key: str | None
    ) -> None:
        self.model = model
        self.step_seconds = step_seconds
        self.step_tokens = step_tokens
        self.api_key = api_key
        self.faults: list[Fault] = []
        self.prefix_cache = PrefixCache()
        self.connections: set[Connection] = set()
        self.cut = False
        """New connections are taken and never read."""
        self.stalled = False
        self.health = 200
        self.running: dict[Stream, None] = {}
        """In the order of their arrival; several may have the same id."""
        self.counts = dict.fromkeys(
            ("requests", "tokens", "finished", "aborted", "disconnected", "probes"), 0
        )
        self.ended: deque[dict[str, object]] = deque(maxlen=MAX_RECORDS)
        """Of each ended call: its id, how it ended, its tokens and when (monotonic seconds)."""
        self._work = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            for stream in list(self.running):
                if not self.stalled:
                    stream.step(self.step_tokens)
            if not self.running:
                self._work.clear()
            await asyncio.sleep(self.step_seconds)

    def start(self, stream: "Stream", salt: str) -> None:
        self.counts["requests"] += 1
        self.prefix_cache.look_up(stream.call, salt)
        self.running[stream] = None
        self._work.set()

    def end(self, stream: "Stream", how: str) -> None:
        """`how` is a name of `counts`."""
        if stream in self.running:
            del self.running[stream]
            self.counts[how] += 1
            record = {"id": stream.call.request_id, "how": how, "tokens": len(stream.call.tokens)}
            self.ended.append(record | {"time": monotonic()})

    def abort(self, ids: object) -> None:
        named = set(map(str, ids)) if isinstance(ids, list) else set()
        for stream in list(self.running):
            if stream.call.request_id in named:
                self.end(stream, "aborted")
                stream.connection.write_event(stream.call.aborted_events())
                stream.connection.end_stream()

    def take_fault(self, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.path == path and fault.times:
                if fault.skip:
                    fault.skip -= 1
                    return None
                fault.times -= 1
                return fault
        return None

    def command(self, path: str, sent: dict[str, Any]) -> bytes:
        """What the control port does."""
        match path:
            case "/faults":
                self.faults = [fault for fault in self.faults if fault.times]
                self.faults.append(Fault(**sent))
            case "/clear":
                self.faults.clear()
                self.stalled = self.cut = False
                self.health = 200
            case "/settings":
                for name, value in sent.items():
                    owner = self if hasattr(self, name) else self.model
                    assert hasattr(owner, name), name
                    setattr(owner, name, value)
            case "/strand":
                for connection in self.connections:
                    connection.strand()
        return to_json(
            {
                **self.counts,
                "running": [stream.call.request_id for stream in self.running],
                "ended": list(self.ended),
                "connections": len(self.connections),
                "prefix_queries": self.prefix_cache.queries,
                "prefix_hits": self.prefix_cache.hits,
                "faults": [asdict(fault) for fault in self.faults],
                "time": monotonic(),
            }
        )

    def metrics(self) -> bytes:
        labels = f'{{engine="0",model_name="{self.model.name}"}}'
        tokens = sum(len(one.call.prompt) + len(one.call.tokens) for one in self.running)
        rows = {
            "num_requests_running": len(self.running),
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": min(1.0, tokens / 2**20),
            "prefix_cache_queries_total": self.prefix_cache.queries,
            "prefix_cache_hits_total": self.prefix_cache.hits,
            "generation_tokens_total": self.counts["tokens"],
        }
        return "".join(
            f"# TYPE vllm:{name} gauge\nvllm:{name}{labels} {float(value)}\n" for name, value in rows.items()
        ).encode()


class Stream:
    """A running call and the connection that it is answered on."""

    def __init__(self, engine: FakeEngine, connection: "Connection", call: Call, fault: Fault | None) -> None:
        self.engine = engine
        self.connection = connection
        self.call = call
        self.fault = fault
        self._is_hung = False

    def step(self, tokens: int) -> None:
        frames: list[bytes] = []
        for _ in range(tokens):
            if self._is_hung or self.connection.is_full:
                break
            fault = self.fault
            if fault is not None and len(self.call.tokens) >= fault.at:
                self.fault = None
                self.connection.write(b"".join(frames))
                frames.clear()
                self._misbehave(fault.kind)
                continue
            token = self.call.advance()
            self.engine.counts["tokens"] += 1
            if self.call.stream:
                frames.append(chunk(self.call.event(token)))
            if self.call.finish is not None:
                self._finish(frames)
                return
        self.connection.write(b"".join(frames))

    def _finish(self, frames: list[bytes]) -> None:
        self.engine.end(self, "finished")
        if self.call.stream:
            self.connection.write(b"".join(frames) + chunk(self.call.end_events()))
            self.connection.end_stream()
        else:
            self.connection.answer(200, self.call.answer(self.engine.model, int(time())))

    def _misbehave(self, kind: str) -> None:
        match kind:
            case "die":
                os._exit(9)
            case "stall":
                self.engine.stalled = True
                self._is_hung = True
            case "hang":
                self._is_hung = True
            case "close" | "reset" | "cut_chunk" | "end":
                self._is_hung = True
                self.engine.end(self, "aborted")
                if kind == "end":
                    self.connection.write_event(b"data: [DONE]\n\n")
                    self.connection.end_stream()
                else:
                    self.connection.write(b"5ff\r\ndata: {" if kind == "cut_chunk" else b"")
                    self.connection.close(reset=kind == "reset")
            case _ if kind in ENDLESS:
                self._is_hung = True
                self.connection.flood(chunk(ENDLESS[kind]))
            case _:
                self.connection.write_event(events()[kind])
                if kind in ("error", "out_of_memory"):
                    self.engine.end(self, "aborted")
                    self.connection.write_event(b"data: [DONE]\n\n")
                    self.connection.end_stream()
                    self._is_hung = True
