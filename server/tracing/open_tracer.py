"""`open_tracer`: the tracer of this process, if the environment names a collector."""

import logging

from server.configuration.environment import exports_traces
from server.tracing.spans import Tracer
from server.version import VERSION

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
