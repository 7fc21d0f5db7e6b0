"""`TrialProcess` compiles each new grammar in a bounded process first, because a compile cannot be stopped.

Patterns of one value, multiples of one value and names of properties may make a compile's time and memory
grow without end. The process, which is this module, ends when a grammar takes more than its bounds; what it
compiles takes as little in the engine's own process. Its vocabulary has the model's token ids, and single
bytes: a compile does not depend on the tokens' texts.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from engine.grammar.matcher import BadGrammar, check_first_mask, make_matcher, make_tokenizer
from engine.grammar.structured_output_to_lark import to_lark
from engine.request import RequestRefused, StructuredOutput, one_line
from engine.vocabulary import Vocabulary

CPU_SECONDS = 2.0
"""Processor time of one grammar's translation and compile; the largest legal schemas take 0.3 to 1.1 s."""
MASK_SECONDS = 0.1
"""Processor time of its first mask. llguidance bounds later ones by counters."""
MEMORY = 768 * 2**20
"""RLIMIT_AS of the process, in bytes; idle it has 150 MB, with 200,000 tokens."""
STACK_BYTES = 32 * 2**20
"""Stack of a compile, where nested schemas recurse; half of what a compiling thread of the engine has."""
WALL_SECONDS = 30.0
"""Timeout for a busy machine; `CPU_SECONDS` limits the work."""
_BOUNDS = {-signal.SIGPROF, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}
"""Exits of a process that has exceeded the bounds of time, memory and stack."""


class TrialProcess:
    """The process from its first use on; started anew after it has ended. One thread at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = vocabulary.tokens
        special = {number: tokens[number].decode(errors="replace") for number in vocabulary.special}
        self._vocabulary = json.dumps([len(tokens), special]).encode()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._end: Callable[[], object] = lambda: None

    def _start(self) -> subprocess.Popen[bytes]:
        """Starts the process. Raises OSError where there are too many processes or files."""
        self._connection, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._end = weakref.finalize(self, _end, process, self._connection)
        return process

    def source_of(self, grammar: StructuredOutput) -> str:
        """The Lark source of a grammar that compiles within the bounds.

        Raises `BadGrammar` for another one, and `RequestRefused` if the process ends for another reason.
        """
        source, refusal = json.loads(self._ask(json.dumps([grammar.kind, grammar.text]).encode()))
        if refusal:
            raise BadGrammar(refusal)
        text: str = source
        return text

    def close(self) -> None:
        self._process = None
        self._end()

    def _ask(self, message: bytes) -> bytes:
        if self._process is not None and self._connection is not None and self._connection.poll(0):
            self.close()  # it has ended while nobody asked: there is nothing else to read then
        is_new = self._process is None
        try:
            process = self._process = self._process or self._start()
        except OSError as error:
            raise RequestRefused("overloaded", f"No grammar can be compiled now: {error}.") from error
        assert self._connection is not None
        try:
            if is_new:
                self._connection.send_bytes(self._vocabulary)
            self._connection.send_bytes(message)
            if self._connection.poll(WALL_SECONDS):
                return self._connection.recv_bytes()
        except (EOFError, OSError):
            process.wait()
        self.close()
        if process.returncode in _BOUNDS:
            raise BadGrammar(
                f"The grammar takes more than {CPU_SECONDS:g} s or {MEMORY // 2**20} MB to compile: use "
                "fewer or simpler properties, patterns, multiples and references."
            )
        raise RequestRefused("overloaded", "The grammar could not be compiled now; try again later.")


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    process.kill()
    process.wait()


def main() -> None:
    """The process: compiles what it is sent until the other end is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # of a terminal or a supervisor, which mean the server
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(Connection(int(sys.argv[1])),))
    thread.start()
    thread.join()


def _serve(connection: Connection) -> None:
    count, names = json.loads(connection.recv_bytes())
    special = {int(number): name for number, name in names.items()}
    tokens = [f"<{number}>".encode() if number in special else b"-" for number in range(count)]
    tokens += [bytes([byte]) for byte in range(256)]
    tokenizer = make_tokenizer(tokens, special)
    while True:
        try:
            kind, text = json.loads(connection.recv_bytes())
        except EOFError:
            return
        source = refusal = ""
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            source = to_lark(StructuredOutput(kind=kind, text=text), special)
            matcher = make_matcher(tokenizer, source)
            signal.setitimer(signal.ITIMER_PROF, MASK_SECONDS)
            check_first_mask(matcher)
        except BadGrammar as error:
            refusal = one_line(str(error))
        except BaseException as error:  # noqa: BLE001 - the library's panics are no Exceptions
            refusal = f"The grammar is not understood: {one_line(str(error))}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(json.dumps([source, refusal]).encode())


if __name__ == "__main__":
    main()
