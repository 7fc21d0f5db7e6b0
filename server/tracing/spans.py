"""`Tracer` begins spans and `Span` ends one; `open_tracer` makes this process's tracer."""

import logging
from collections.abc import Mapping
from typing import Literal, Protocol

from server.configuration.environment import exports_traces
from server.version import VERSION

Value = str | int | float | bool
Kind = Literal["server", "internal", "client"]


class Span(Protocol):
    """A span that has begun and is recorded."""

    @property
    def trace_parent(self) -> str:
        """The W3C `traceparent` by which others make their spans children of this one."""

    def end(
        self,
        attributes: Mapping[str, Value | None] | None = None,
        *,
        error: str | None = None,
        name: str | None = None,
        end_ns: int | None = None,
    ) -> None:
        """Ends the span, with an error's type if it failed, at a Unix time or now. Never waits."""


class Tracer(Protocol):
    """Begins spans. Any thread; never waits."""

    def begin(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        parent: str | None = None,
        attributes: Mapping[str, Value | None] | None = None,
        start_ns: int | None = None,
        span_id: int | None = None,
    ) -> Span | None:
        """A span, None if it is not sampled; a malformed `parent` is ignored, and ids are random."""

    def close(self) -> None:
        """Exports what has ended, for two seconds at most."""


log = logging.getLogger("holdfast.tracing")


def open_tracer(replica: str) -> Tracer | None:
    """None without a collector, or without the optional packages, of which the log then says a sentence."""
    if not exports_traces():
        return None
    try:
        from server.tracing.open_telemetry import make_tracer
    except ModuleNotFoundError as error:
        log.warning("nothing is traced: %s is not installed; install holdfast[tracing]", error.name)
        return None
    return make_tracer(replica, VERSION)
