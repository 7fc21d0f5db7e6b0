"""`configure_logging`, and the handler that never waits for the reader of standard error.

A thread of its own writes lines, and drops and counts them where nobody reads the pipe.
"""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from time import monotonic, sleep, time
from typing import Generic, Literal, TypeVar

from server.logs.formats import JsonFormatter, OneLineFormatter, keep_request

T = TypeVar("T")

FOLD_SECONDS = 10.0
MAX_KEYS = 1000
"""Different warnings that are remembered. The oldest is forgotten, so one more line of it may be written."""


@dataclass(slots=True)
class _Window(Generic[T]):
    since: float
    first: T
    left_out: int = 0


class RepeatFolder(Generic[T]):
    """Decides which lines are written. Times are the caller's, in monotonic seconds.

    Call `admit` for each line, and `expire` about once a second, so that the count of a storm that has ended
    is written, too.
    """

    def __init__(self, seconds: float = FOLD_SECONDS, max_keys: int = MAX_KEYS) -> None:
        self._seconds = seconds
        self._max_keys = max_keys
        self._windows: dict[Hashable, _Window[T]] = {}
        """In the order of their beginning."""
        self._evicted: list[tuple[T, int]] = []

    def __len__(self) -> int:
        return len(self._windows)

    def admit(self, key: Hashable, line: T, now: float) -> bool:
        """Whether the line is written; if not, it is counted. `line` is what `expire` repeats."""
        window = self._windows.get(key)
        if window is not None:
            window.left_out += 1
            return False
        if len(self._windows) >= self._max_keys:
            oldest = self._windows.pop(next(iter(self._windows)))
            if oldest.left_out and len(self._evicted) < self._max_keys:
                self._evicted.append((oldest.first, oldest.left_out))
        self._windows[key] = _Window(now, line)
        return True

    def expire(self, now: float) -> list[tuple[T, int]]:
        """The lines whose window is over and how many were left out in it, if any were.

        Such a line's next window begins now: a storm that goes on is one line in each window.
        """
        due, self._evicted = self._evicted, []
        for key, window in list(self._windows.items()):
            if now - window.since < self._seconds:
                break
            del self._windows[key]
            if window.left_out:
                due.append((window.first, window.left_out))
                self._windows[key] = _Window(now, window.first)
        return due


MAX_LINES = 10_000
"""Lines that wait to be written; with tracebacks a few megabytes."""
MAX_LINE_CHARACTERS = 64 * 1024
_BATCH = 256
_GATHER_SECONDS = 0.05
"""Pause between the first line and the write, so that a write has many lines: a busy server would else wake
this thread, and take the interpreter from others, for every line."""
_TICK_SECONDS = 1.0
_FLUSH_SECONDS = 1.0
"""For the last lines at exit."""

log = logging.getLogger("holdfast.log")


class NonBlockingHandler(logging.Handler):
    """Writes lines to a file descriptor, folds repeated warnings and errors, drops what nobody reads."""

    def __init__(self, descriptor: int, max_lines: int = MAX_LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._max_lines = max_lines
        self._lines: deque[str | logging.LogRecord] = deque()
        """Lines, and records of level info and below, which are formatted by the log thread: all together,
        which takes a fraction of the time."""
        self._dropped = 0
        self._repeats: RepeatFolder[logging.LogRecord] = RepeatFolder()
        self._news = threading.Event()
        self._waiting = threading.Lock()
        """Guards `_lines` and `_written` together."""
        self._written = threading.Event()
        """Set while no line waits."""
        self._written.set()
        threading.Thread(target=self._write_for_ever, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues the record's line, unless it is folded. Called with the handler's lock held."""
        try:
            if record.levelno <= logging.INFO and not record.exc_info:
                keep_request(record)
                self._put(record)
            elif record.levelno > logging.ERROR or self._repeats.admit(
                fold_key(record), _repeatable(record), monotonic()
            ):
                self._put(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)

    def flush(self) -> None:
        """Waits until all is written, counts of folded lines included, for a second at most."""
        self._report(monotonic() + 2 * FOLD_SECONDS)
        self._written.wait(_FLUSH_SECONDS)

    def _put(self, line: str | logging.LogRecord) -> None:
        with self._waiting:
            if len(self._lines) >= self._max_lines:
                self._dropped += 1
                return
            self._lines.append(line)
            self._written.clear()
        if not self._news.is_set():
            self._news.set()

    def _report(self, now: float) -> None:
        """Queues the counts of lines that were folded until `now`, and of those that were dropped."""
        self.acquire()
        try:
            for first, left_out in self._repeats.expire(now):
                first.left_out, first.created = left_out, time()
                self._put(self.format(first))
        finally:
            self.release()
        if self._dropped and len(self._lines) < self._max_lines:
            count, self._dropped = self._dropped, 0
            attributes = {"name": log.name, "levelno": logging.WARNING, "levelname": "WARNING"}
            message = f"{count} lines were dropped, because nobody read standard error"
            self._put(self.format(logging.makeLogRecord({**attributes, "msg": message})))

    def _write_for_ever(self) -> None:
        while True:
            if self._news.wait(_TICK_SECONDS):
                sleep(_GATHER_SECONDS)
            self._news.clear()
            while batch := self._next_batch():
                self._write(batch)
            self._report(monotonic())

    def _next_batch(self) -> list[str | logging.LogRecord]:
        """The lines to write next; none, and `_written` is set, when all are written."""
        with self._waiting:
            if not self._lines:
                self._written.set()
            return [self._lines.popleft() for _ in range(min(len(self._lines), _BATCH))]

    def _line(self, line: str | logging.LogRecord) -> str:
        try:
            return (line if isinstance(line, str) else self.format(line))[:MAX_LINE_CHARACTERS]
        except Exception as error:  # noqa: BLE001 - it must not end this thread
            return f"a line cannot be written: {type(error).__name__}"

    def _write(self, batch: list[str | logging.LogRecord]) -> None:
        text = "\n".join(map(self._line, batch)) + "\n"
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                sleep(_GATHER_SECONDS)
            except OSError:
                return  # its reader has closed it


def fold_key(record: logging.LogRecord) -> Hashable:
    """Lines with equal keys are the same warning: logger, template, tenant, limit, place of the exception."""
    position = None
    if record.exc_info and (trace := record.exc_info[2]) is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        position = (record.exc_info[0], trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    tenant, limit = getattr(record, "tenant", None), getattr(record, "limit", None)
    return record.name, record.levelno, record.msg, tenant, limit, position


def _repeatable(record: logging.LogRecord) -> logging.LogRecord:
    """A record that repeats this one's message, without its traceback and the request that it was in."""
    same = {name: getattr(record, name, None) for name in ("name", "levelno", "levelname", "tenant", "limit")}
    return logging.makeLogRecord({**same, "msg": record.getMessage()})


def configure_logging(level: str, style: Literal["text", "json"] = "text", *, access: bool = True) -> None:
    """Writes records from `level` on to standard error in this format; those of requests with `access`."""
    logging._srcfile = None  # no line has its place in the code: logging's HOWTO has this
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for client in ("httpx", "httpx2"):
        logging.getLogger(client).setLevel("WARNING")  # logs every exchange with its full URL
    logging.getLogger("huggingface_hub").setLevel(
        "ERROR"
    )  # warns of each try of a download, with a traceback
    logging.getLogger("mcp").setLevel("CRITICAL")  # logs what servers send; our log has the failures
    if not access:
        logging.getLogger("holdfast.access").setLevel("WARNING")
    handler = NonBlockingHandler(sys.stderr.fileno())
    handler.setFormatter(JsonFormatter() if style == "json" else OneLineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_replica(replica: str) -> None:
    """Names this replica in every JSON line from now on."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonFormatter):
            handler.formatter.process_fields = {"replica": replica}
