"""`python -m bench.timed_server FILE serve …`: a server that notes when its engine gave which tokens.

When it ends in good order, the file has a JSON list of [monotonic seconds, engine request id, token ids].
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from engine.request import Tokens
from server.cli import entry_point
from server.recording.recorder import Recorder
from server.recording.recorder_messages import RecorderMessage


def main(file: str, arguments: Sequence[str]) -> int:
    noted: list[tuple[float, str, tuple[int, ...]]] = []
    deliver = Recorder.deliver

    def note(recorder: Recorder, messages: Sequence[RecorderMessage], /) -> None:
        now = time.monotonic()
        noted.extend((now, one.request_id, one.token_ids) for one in messages if isinstance(one, Tokens))
        deliver(recorder, messages)

    Recorder.deliver = note  # type: ignore[method-assign]
    code = entry_point.main(arguments)
    Path(file).write_text(json.dumps(noted), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
