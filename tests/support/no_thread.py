"""`no_thread`: in place of `Thread.start`, the machine's limit of threads."""

import threading


def no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
