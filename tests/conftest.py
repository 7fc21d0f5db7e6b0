import functools
import gc
import signal
from typing import Any

import httpx._transports.default
from hypothesis import settings

from tests.support.rounds import example_count

pytest_plugins = [
    "tests.fix_postgres",
    "tests.fix_cluster",
    "tests.fix_pgbouncer",
    "tests.fix_proxy",
    "tests.fix_server",
    "tests.fix_bodies",
    "tests.fix_tally",
]


def pytest_configure() -> None:
    gc.disable()  # until all tests are there: they stay, and each pass would look at all of them again
    _read_certificates_once()
    _feel_interrupts()
    settings.register_profile("suite", max_examples=example_count(100))
    settings.load_profile("suite")


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


def _read_certificates_once() -> None:
    """A client reads the authorities of TLS for 25 ms of CPU, and each `httpx.get` makes a client."""
    transports: Any = httpx._transports.default
    transports.create_ssl_context = functools.cache(transports.create_ssl_context)


def _feel_interrupts() -> None:
    """A script's background job ignores SIGINT, and its children do: here they must feel it.

    What ignores a signal hands that on to every program that it starts; what handles one does not.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
