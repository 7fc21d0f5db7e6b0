"""What a worker that a hostile file has taken over can still do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.protocol import bounded_process

TAKEN_OVER = """
import ctypes, errno, json, os, pathlib, socket, subprocess, threading


def prepare():
    pass


def tried(attempt):
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno)
    return "done"


def answer(content, *bounds):
    settings = content.decode()
    libc = ctypes.CDLL(None, use_errno=True)
    ran = []
    thread = threading.Thread(target=lambda: ran.append(1))
    thread.start()
    thread.join()
    found = {
        "socket": tried(lambda: socket.socket(socket.AF_INET)),
        "unix": tried(lambda: socket.socket(socket.AF_UNIX)),
        "passwd": tried(lambda: open("/etc/passwd").read()),
        "settings": tried(lambda: open(settings).read()),
        "parent": tried(lambda: open("/proc/1/environ", "rb").read()),
        "write": tried(lambda: open(settings + ".new", "w")),
        "program": tried(lambda: os.execv("/bin/true", ["/bin/true"])),
        "process": tried(os.fork),
        "signal": tried(lambda: os.kill(1, 0)),
        "root": tried(lambda: os.setuid(0)),
        "libraries": tried(lambda: pathlib.Path(os.__file__).read_text()),
        "threads": "done" if ran else None,
        "variables": sorted(set(os.environ) - {"LC_CTYPE"}),
    }
    return json.dumps(found).encode()
"""


@pytest.mark.skipif(bounded_process.missing() is not None, reason="this kernel lacks a part of the sandbox")
def test_it_reaches_neither_the_network_nor_files_nor_processes(tmp_path: Path) -> None:
    worker, settings = tmp_path / "worker.py", tmp_path / "holdfast.env"
    worker.write_text(TAKEN_OVER)
    settings.write_text("HOLDFAST_SEAL_KEY=secret")
    ran = subprocess.run(
        [sys.executable, "-I", bounded_process.__file__, str(worker), "10", str(2**30)],
        input=str(settings).encode(),
        capture_output=True,
        env={},
        check=True,
    )
    found = json.loads(ran.stdout)
    refused = {name: code for name, code in found.items() if code in ("EPERM", "EACCES")}
    assert found == {**refused, "libraries": "done", "threads": "done", "variables": []}
    assert len(refused) == 10
    assert not settings.with_suffix(".env.new").exists()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_has_a_place_for_each_jump(machine: str) -> None:
    words = bounded_process.program(machine)
    lines = [words[start : start + 8] for start in range(0, len(words), 8)]
    assert len(lines) < 4096  # the kernel's limit
    for place, line in enumerate(lines):
        if line[0] in (0x15, 0x35, 0x45):
            assert place + 1 + max(line[2], line[3]) < len(lines)
    assert lines[-1][0] == 0x06


def test_machine_without_a_filter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = os.uname()
    other = os.uname_result((*there[:4], "riscv64"))
    monkeypatch.setattr(os, "uname", lambda: other)
    assert "no seccomp" in (bounded_process.missing() or "")
