"""`python -m bench.traced_server FILE serve …`: a server that notes the calls of its own functions.

When it ends in good order, the file has a JSON list of [monotonic seconds, thread, file and function of the
caller, file and function that is called]. Resuming a generator is not a call.
"""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from opcode import opmap
from pathlib import Path
from types import FrameType
from typing import Any

from server.cli import entry_point

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{ROOT / folder}/" for folder in ("server", "engine"))
MOST_NOTES = 500_000
YIELD = opmap["YIELD_VALUE"]


def main(file: str, arguments: Sequence[str]) -> int:
    notes: deque[tuple[float, int, str, str, str, str]] = deque(maxlen=MOST_NOTES)
    start = len(f"{ROOT}/")

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OURS) or _is_resumed(frame):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(OURS):
            caller = caller.f_back
        by = caller.f_code if caller is not None else code
        notes.append(
            (
                time.monotonic(),
                threading.get_ident(),
                by.co_filename[start:],
                by.co_qualname,
                code.co_filename[start:],
                code.co_qualname,
            )
        )

    threading.setprofile(note)
    code = entry_point.main(arguments)
    threading.setprofile(None)
    Path(file).write_text(json.dumps(list(notes)), encoding="utf-8")
    return code


def _is_resumed(frame: FrameType) -> bool:
    """Whether a generator goes on after a `yield`, at which it had stopped or which it has passed."""
    instructions = frame.f_code.co_code[::2]
    return YIELD in instructions and frame.f_lasti >= 2 * instructions.index(YIELD)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
