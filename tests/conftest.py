import signal

pytest_plugins = [
    "tests.fix_postgres",
    "tests.fix_cluster",
    "tests.fix_proxy",
    "tests.fix_server",
    "tests.fix_bodies",
    "tests.fix_tally",
]


def pytest_configure() -> None:
    """A script's background job ignores SIGINT, and its children do: here they must feel it.

    What ignores a signal hands that on to every program that it starts; what handles one does not.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
