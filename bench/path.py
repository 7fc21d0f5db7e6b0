"""The way of one streamed create through the code: files that it enters, and changes of package."""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.support.server_process import MODEL, ServerProcess

TOKENS = 3
MOST_FILES = 45
MOST_CHANGES = 25
HANDLER = ("server/http/handlers/responses.py", "create")

Call = tuple[float, int, str, str, str]
"""Monotonic seconds, thread, file of the caller, file and name of the function."""


def run() -> None:
    """A streamed, stored create of 3 tokens by the scripted engine: all threads, and the handler's alone."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        Path(folder).chmod(0o711)
        file = Path(folder) / "notes.json"
        server = ServerProcess(
            settings={"data_dir": f"{folder}/data", "engine": "scripted", "scripted_tokens": TOKENS},
            module=("bench.traced_server", str(file)),
        )
        server.start()
        try:
            for _ in range(3):
                began = time.monotonic()
                _stream(server)
            ended = time.monotonic()
            server.ask_to_end()
            server.wait()
        finally:
            server.stop()
        calls: list[Call] = [tuple(call) for call in json.loads(file.read_text(encoding="utf-8"))]
    during = [call for call in calls if began <= call[0] <= ended]
    handlers = {call[1] for call in during if call[3:] == HANDLER}
    _show("all threads", during)
    files, changes = _show("the handler's thread", [call for call in during if call[1] in handlers])
    for name, reached, most in (("files", files, MOST_FILES), ("changes of package", changes, MOST_CHANGES)):
        print(f"{name}: {reached}, goal <={most}: {'reached' if reached <= most else 'missed'}")


def _stream(server: ServerProcess) -> None:
    body = {"model": MODEL, "input": "Hello", "stream": True}
    with httpx.stream("POST", f"{server.api}/responses", json=body, timeout=60) as response:
        assert response.read().endswith(b"[DONE]\n\n") or response.status_code == 200


def _show(name: str, calls: Sequence[Call]) -> tuple[int, int]:
    """Prints the counts; returns files and calls into another package."""
    files = {path for *_, path, _ in calls}
    functions = {(path, function) for *_, path, function in calls}
    between_files = sum(caller != path for *_, caller, path, _ in calls)
    between_packages = Counter(
        (package(caller), package(path)) for *_, caller, path, _ in calls if package(caller) != package(path)
    )
    print(
        f"{name}: {len(functions)} functions in {len(files)} files; "
        f"{between_files} calls into another file, {between_packages.total()} into another package",
        flush=True,
    )
    for (caller, called), count in between_packages.most_common(12):
        print(f"    {count:4} {caller} -> {called}")
    return len(files), between_packages.total()


def package(path: str) -> str:
    """`server/http/handlers/responses.py` is of `server/http`, `server/errors.py` of itself."""
    return "/".join(Path(path).parts[:2])
