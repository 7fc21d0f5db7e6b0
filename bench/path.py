"""The way of one streamed create through the code: files that it enters, and calls into another package.

`python -m bench.path` prints each of these calls, too.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.support.server_process import MODEL, ServerProcess

TOKENS = 3
MOST_FILES = 44
MOST_CHANGES = 25
WORDS = ("server/protocol", "server/errors", "server/logs")
"""Packages whose functions belong to the words of every other one: calls into them change no package."""
HANDLER = ("server/http/handlers/responses.py", "create")

Call = tuple[float, int, str, str, str, str]
"""Monotonic seconds, thread, file and function of the caller, file and function that is called."""


def run(*, verbose: bool = False) -> None:
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
    handlers = {call[1] for call in during if call[4:] == HANDLER}
    _show("all threads", during)
    by_handler = [call for call in during if call[1] in handlers]
    files, changes = _show("the handler's thread", by_handler)
    for name, reached, most in (("files", files, MOST_FILES), ("changes of package", changes, MOST_CHANGES)):
        print(f"{name}: {reached}, goal <={most}: {'reached' if reached <= most else 'missed'}")
    if verbose:
        print(*sorted({path for *_, path, _ in by_handler}), sep="\n")
        for _, _, caller, calling, path, function in filter(_changes_package, by_handler):
            print(f"    {caller}:{calling} -> {path}:{function}")


def _stream(server: ServerProcess) -> None:
    body = {"model": MODEL, "input": "Hello", "stream": True}
    with httpx.stream("POST", f"{server.api}/responses", json=body, timeout=60) as response:
        assert response.read().endswith(b"[DONE]\n\n") or response.status_code == 200


def _show(name: str, calls: Sequence[Call]) -> tuple[int, int]:
    """Prints the counts; returns files and calls into another package."""
    files = {path for *_, path, _ in calls}
    functions = {(path, function) for *_, path, function in calls}
    between_files = sum(
        caller != path and not _is_callback(function) for *_, caller, _, path, function in calls
    )
    between_packages = Counter(
        (package(caller), package(path)) for *_, caller, _, path, _ in filter(_changes_package, calls)
    )
    print(
        f"{name}: {len(functions)} functions in {len(files)} files; "
        f"{between_files} calls into another file, {between_packages.total()} into another package",
        flush=True,
    )
    for (caller, called), count in between_packages.most_common(12):
        print(f"    {count:4} {caller} -> {called}")
    return len(files), between_packages.total()


def _changes_package(call: Call) -> bool:
    _, _, caller, _, path, function = call
    return package(caller) != package(path) and not (_is_callback(function) or path.startswith(WORDS))


def _is_callback(function: str) -> bool:
    """A function defined within another one: its file's package is entered where that one is called."""
    return "<locals>" in function or "<lambda>" in function


def package(path: str) -> str:
    """The first two folders: `server/http` of a file in it or below, `engine` of `engine/request.py`."""
    return "/".join(Path(path).parent.parts[:2])


if __name__ == "__main__":
    run(verbose=True)
