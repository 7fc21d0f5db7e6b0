"""`python -m bench.traced_server FILE serve …`: a server that notes the calls of its own functions.

When it ends in good order, the file has a JSON list of [monotonic seconds, thread, file of the caller, file,
function].
"""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from server.cli import entry_point

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{ROOT / folder}/" for folder in ("server", "engine"))
MOST_NOTES = 500_000


def main(file: str, arguments: Sequence[str]) -> int:
    notes: deque[tuple[float, int, str, str, str]] = deque(maxlen=MOST_NOTES)

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OURS):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(OURS):
            caller = caller.f_back
        called_by = caller.f_code.co_filename if caller is not None else code.co_filename
        notes.append((time.monotonic(), threading.get_ident(), called_by, code.co_filename, code.co_qualname))

    threading.setprofile(note)
    code = entry_point.main(arguments)
    threading.setprofile(None)
    start = len(f"{ROOT}/")
    written = [
        (*when, caller[start:], path[start:], function) for *when, caller, path, function in list(notes)
    ]
    Path(file).write_text(json.dumps(written), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
