"""`python -m tests.support.stalling_server SECONDS serve …`: a server whose interpreter can be made to stall.

At SIGUSR2 it calls a native function that keeps the interpreter's lock for so many seconds, as a regular
expression or a tokenizer may: no thread of the process runs Python meanwhile.
"""

import ctypes
import signal
import sys


def main(seconds: int, arguments: list[str]) -> int:
    from server.cli import entry_point

    native = ctypes.PyDLL(None)
    signal.signal(signal.SIGUSR2, lambda *_: native.sleep(seconds))
    return entry_point.main(arguments)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
