"""What code finds in a sandbox, and what it cannot do from there. Real sandboxes."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.sandboxes import need_sandboxes
from tool_servers.runner.sandbox import (
    MB,
    RunResult,
    Sandbox,
    SandboxLimits,
    ShellCommand,
    find_python,
    process_tree,
)

LIMITS = SandboxLimits(seconds=1.5, memory=192 * MB, disk=8 * MB, files=1000, processes=32, output=20_000)


class Session:
    """A sandbox, and another one when it has ended."""

    def __init__(self) -> None:
        self.sandbox = Sandbox(LIMITS, find_python(None))

    def run(self, piece: str | ShellCommand) -> RunResult:
        ran = self.sandbox.run(piece)
        if ran.ended is not None:
            self.begin_anew()
        return ran

    def begin_anew(self) -> None:
        self.sandbox.close()
        self.sandbox = Sandbox(LIMITS, find_python(None))

    def says(self, piece: str | ShellCommand) -> str:
        """What code prints, or a command, that leaves the sandbox whole."""
        ran = self.run(piece)
        assert ran.ended is None, ran
        return ran.output


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    need_sandboxes()
    opened = Session()
    yield opened
    opened.sandbox.close()


def _family(sandbox: Sandbox) -> list[int]:
    return process_tree(sandbox.process.pid)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_names_and_files_last_and_a_last_expression_is_shown(session: Session) -> None:
    assert session.says("import math\nx = 6\nopen('a.txt', 'w').write('kept')") == "4\n"
    assert session.says("print(x); x * 7") == "6\n42\n"
    assert session.says("open('/mnt/data/a.txt').read()") == "'kept'\n"
    assert session.says("None") == session.says("") == session.says("raise SystemExit") == ""


def test_mistakes_are_told_with_their_line(session: Session) -> None:
    told = session.says("def f():\n    return 1 / 0\nf()")
    assert "line 2, in f\n    return 1 / 0" in told
    assert told.endswith("ZeroDivisionError: division by zero\n")
    assert "SyntaxError" in session.says("1 +")
    assert session.says("print('after')") == "after\n"


def test_output_is_in_the_order_in_which_it_was_printed(session: Session) -> None:
    code = "import sys, os\nprint(1); print(2, file=sys.stderr); os.system('echo 3'); print(4)"
    assert session.says(code).split() == ["1", "2", "3", "4"]


def test_command_prints_both_its_streams_in_its_folder_and_environment(session: Session) -> None:
    words = ["sh", "-c", "echo one; echo two >&2; pwd; echo $GREETING; cat"]
    assert session.says(ShellCommand(words, "/usr", {"GREETING": "Hi"})) == "one\ntwo\n/usr\nHi\n"
    assert session.says(ShellCommand(["pwd"])) == "/mnt/data\n"


def test_end_of_a_command_is_told_unless_all_is_well(session: Session) -> None:
    assert session.says(ShellCommand(["true"])) == ""
    assert session.says(ShellCommand(["sh", "-c", "echo no; exit 3"])) == "no\n[exit code 3]\n"
    assert session.says(ShellCommand(["sh", "-c", "kill -9 $$"])) == "[exit code -9]\n"


@pytest.mark.parametrize(
    "command",
    [
        ShellCommand(["no-such-program"]),
        ShellCommand(["ls"], "/no-such-folder"),
        ShellCommand(["ls", "\0"]),
        ShellCommand(["ls"], variables={"A=B": "c"}),
        ShellCommand(["echo", "x" * 200_000]),
        ShellCommand([""]),
    ],
)
def test_command_that_cannot_be_begun_is_told_with_the_reason(
    session: Session, command: ShellCommand
) -> None:
    told = session.says(command)
    assert told.startswith(f"{command.words[0]}: ")
    assert "Traceback" not in told


@pytest.mark.parametrize("seconds", [0.2, None])
def test_command_that_does_not_end_is_killed_with_all_it_began(
    session: Session, seconds: float | None
) -> None:
    words = ["sh", "-c", "sleep 1000 & echo begun; wait"]
    assert (
        session.says(ShellCommand(words, seconds=seconds))
        == "begun\n[It did not end in time and was killed.]\n"
    )
    left = (
        "import subprocess; subprocess.run(['pgrep', '-c', 'sleep'], capture_output=True, text=True).stdout"
    )
    assert session.says(left) == "'0\\n'\n"


def test_code_goes_on_with_its_names_behind_a_command(session: Session) -> None:
    session.says("kept = 7")
    session.says(ShellCommand(["true"]))
    assert session.says("kept") == "7\n"


def test_a_question_to_the_user_finds_nobody(session: Session) -> None:
    assert "EOFError" in session.says("input('?')")
    assert session.says("1") == "1\n"


def test_an_endless_loop_is_interrupted_and_what_was_there_is_kept(session: Session) -> None:
    session.says("kept = 1")
    assert "OutOfTime" in session.says("while True: pass")
    assert session.says("kept") == "1\n"


def test_a_loop_that_will_not_be_interrupted_is_ended(session: Session) -> None:
    code = "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nprint('on')\nwhile True: pass"
    ran = session.run(code)
    assert ran == RunResult("on\n", "The code did not end within 1.5 seconds.")


def test_a_gigabyte_of_output_is_read_and_mostly_forgotten(session: Session) -> None:
    code = "import os\nprint('first')\nfor _ in range(1000): os.write(1, b'x' * 10**6)\nprint('last')"
    ran = session.run(code)
    assert len(ran.output) < LIMITS.output + 100
    assert ran.output.startswith("first\nxxx")
    assert "bytes were left out" in ran.output
    assert ran.output.endswith("last\n") or ran.ended is not None or "OutOfTime" in ran.output


def test_a_memory_bomb_is_an_error_of_the_codes(session: Session) -> None:
    session.says("kept = 2")
    assert "MemoryError" in session.says("a = bytearray(10**9)")
    assert "MemoryError" in session.says("a = []\nwhile True: a.append('x' * 10**7)")
    assert session.says("del a; kept") == "2\n"


SHARED_MEMORY = """
import mmap
m = []
while True:
    m.append(mmap.mmap(-1, 10**7))
    m[-1].write(bytes(10**7))
"""
A_LITTLE_EACH = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        a = b'x' * 10**8
        time.sleep(9)
time.sleep(9)
"""


@pytest.mark.parametrize("code", [SHARED_MEMORY, A_LITTLE_EACH])
def test_memory_is_counted_however_it_is_had_and_over_all_processes(session: Session, code: str) -> None:
    ran = session.run(code)
    assert ran.ended == "The code used more than 192 MB of memory.", ran


def test_a_fork_bomb_has_no_more_processes_than_it_may(session: Session) -> None:
    code = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(9)"
    most = 0
    done = threading.Event()
    ran: list[RunResult] = []
    sandbox = session.sandbox

    def bomb() -> None:
        ran.append(session.run(code))
        done.set()

    threading.Thread(target=bomb).start()
    while not done.wait(0.02):
        most = max(most, len(_family(sandbox)))
    assert 5 < most <= LIMITS.processes + 3  # a busy machine is seen less of
    assert session.run("1").output.endswith("1\n")
    session.begin_anew()


def test_processes_of_the_code_stand_still_between_two_pieces(session: Session) -> None:
    session.says("import subprocess, time\np = subprocess.Popen(['sh', '-c', 'while :; do :; done'])")

    def spent() -> list[int]:
        stats = [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            for pid in _family(session.sandbox)
        ]
        return [int(fields[11]) + int(fields[12]) for fields in stats]

    before = spent()
    time.sleep(0.3)  # what would be done in it is what must not be
    assert spent() == before
    assert session.says("p.poll() is None") == "True\n"
    session.says("p.kill(); p.wait()")


def test_disk_and_files_have_a_size(session: Session) -> None:
    assert "too large" in session.says("open('/mnt/data/big', 'wb').write(bytes(10**7))")
    assert "No space left" in session.says(
        "for n in range(9): open(f'/dev/shm/{n}', 'wb').write(bytes(10**6))"
    )
    ran = session.run("for n in range(10**6): open(f'/tmp/{n}', 'w').close()")
    assert ran.ended == "The code made more than 1000 files."


@pytest.mark.parametrize(
    "path",
    ["/x", "/usr/x", "/usr/bin/python3", "/etc/x", "/dev/x", "/proc/x", "/proc/sys/kernel/hostname", "/bin/x",
     "/mnt/x", "/proc/sysrq-trigger", "/sys/x", "/root/x", "/home/x", "/var/x", "/run/x"],
)  # fmt: skip
def test_nothing_can_be_written_but_its_own_folder(session: Session, path: str) -> None:
    assert "Error" in session.says(f"open({path!r}, 'w').write('x')")


def test_nothing_of_this_machine_can_be_read(session: Session) -> None:
    session.begin_anew()
    code = (
        "import os\n"
        "for p in ('/etc/passwd', '/etc/shadow', '/root', '/home', '/var', '/run', '/sys', '/proc/kcore'):\n"
        "    try: print(p, os.listdir(p) if os.path.isdir(p) else open(p, 'rb').read(1))\n"
        "    except OSError: pass\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    print(pid, open(f'/proc/{pid}/environ').read())\n"
    )
    told = session.says(code)
    assert [line for line in told.splitlines() if line.startswith("/")] == []
    assert "PYTEST" not in told
    assert "HOLDFAST" not in told
    assert session.says("import os; len([p for p in os.listdir('/proc') if p.isdigit()])") == "2\n"


def test_there_is_no_network(session: Session) -> None:
    told = session.says(
        "import socket\n"
        "for where in (('127.0.0.1', 5432), ('169.254.169.254', 80), ('1.1.1.1', 443), ('::1', 22)):\n"
        "    try: socket.create_connection(where, 1); print('reached', where)\n"
        "    except OSError as error: print(error.errno is not None)\n"
    )
    assert told.split() == ["True"] * 4
    assert "not supported" in session.says("socket.socket(socket.AF_VSOCK)")
    assert "not supported" in session.says("socket.socket(socket.AF_PACKET)")


def test_a_listener_of_this_machine_is_not_reached(session: Session, unused_listener: int) -> None:
    assert "refused" in session.says(
        f"import socket; socket.create_connection(('127.0.0.1', {unused_listener}), 1)"
    )


@pytest.fixture
def unused_listener() -> Iterator[int]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_others_processes_cannot_be_killed(session: Session) -> None:
    session.says("import os, signal")
    for pid in (os.getpid(), os.getppid(), session.sandbox.process.pid):
        assert "Error" in session.says(f"os.kill({pid}, 9)")
    session.says("os.kill(1, 9)")
    assert session.says("1") == "1\n"


def test_no_namespace_can_be_made_and_nothing_mounted_or_traced(session: Session) -> None:
    told = session.says(
        "import ctypes, os\n"
        "c = ctypes.CDLL(None, use_errno=True)\n"
        "print(c.unshare(0x10000000), c.mount(b'a', b'/mnt/data', b'tmpfs', 0, None), c.ptrace(0, 0, 0, 0))\n"
        "print(c.memfd_create(b'x', 0), c.shmget(1, 1000, 0o1600), os.getuid())\n"
    )
    assert told == "-1 -1 -1\n-1 -1 1000\n"


def test_an_interpreter_that_ends_itself_is_told_and_replaced(session: Session) -> None:
    ran = session.run("print('bye'); import os; os._exit(0)")
    assert ran == RunResult("bye\n", "The interpreter ended.")
    assert session.says("1") == "1\n"


def test_code_that_breaks_the_interpreter_breaks_its_own_only(session: Session) -> None:
    for code in (
        "import os; os.closerange(0, 255)",
        "import os\nfor fd in range(3, 255):\n    try: os.write(fd, b'.' * 10**5)\n    except OSError: pass",
        "import ctypes; ctypes.string_at(0)",
        "import sys; sys.stdout = sys.stderr = None\n1/0",
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        "import builtins; builtins.compile = None",
    ):
        session.run(code)
    session.begin_anew()
    assert session.says("1") == "1\n"


def test_text_of_any_kind_is_code_or_a_mistake(session: Session) -> None:
    assert (
        session.says("print('ä🎉\\ud800'.encode('utf-8', 'replace'))")
        == "b'\\xc3\\xa4\\xf0\\x9f\\x8e\\x89?'\n"
    )
    assert "Error" in session.says("x = '\ud800'")
    assert "Error" in session.says("\0")
    assert session.says("x = '" + "y" * 10**6 + "'\nlen(x)") == "1000000\n"


def test_closing_ends_every_process(session: Session) -> None:
    sandbox = Sandbox(LIMITS, find_python(None))
    sandbox.run("import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(99)")
    family = _family(sandbox)
    assert len(family) >= 4
    sandbox.close()
    eventually(lambda: all(_is_gone(pid) for pid in family))
