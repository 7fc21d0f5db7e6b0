"""Interfaces of tracing, whatever exports the spans: `Tracer` begins spans, `Span` ends one."""

from collections.abc import Mapping
from typing import Literal, Protocol

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
        """Ends the span, with an error's type if it failed; attributes that are None are left out.

        `end_ns` is in nanoseconds of Unix time. Never waits.
        """


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
        """A new span; None if it is not sampled. `parent` is a `traceparent`, ignored if malformed.

        `span_id` is its id, of 64 bits; None for a random one.
        """

    def close(self) -> None:
        """Exports what has ended, for two seconds at most."""
