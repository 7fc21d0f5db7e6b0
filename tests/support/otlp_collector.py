"""An OTLP/HTTP collector of a test's own: decodes the spans that it is sent, or says nothing."""

import gzip
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


@dataclass(frozen=True)
class CollectedSpan:
    """A span as it was sent; ids in hexadecimal, times in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    failed: bool
    attributes: dict[str, object]
    resource: dict[str, object]


class OtlpCollector:
    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self.silent = threading.Event()
        """Set: it takes connections and answers nothing."""
        self.ended = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                if collector.silent.is_set():
                    collector.ended.wait(600)
                    return
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def named(self, name: str) -> list[CollectedSpan]:
        return [span for span in list(self.spans) if span.name == name]

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _values(group.resource.attributes)
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        CollectedSpan(
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.status.code == 2,
                            _values(span.attributes),
                            resource,
                        )
                    )


def _values(pairs: Iterable[KeyValue]) -> dict[str, object]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> object:
    return getattr(value, value.WhichOneof("value") or "string_value")


@contextmanager
def running_collector() -> Iterator[OtlpCollector]:
    collector = OtlpCollector()
    try:
        yield collector
    finally:
        collector.close()
