"""`python -m tests.support.wrong_clock FILE serve …`: a server whose clock is wrong by the seconds in a file.

The file is read whenever the server asks for the time of day, so its clock may jump while it runs. Clocks
that measure how long something takes stay right, as they do on a machine whose clock is set.
"""

import datetime
import sys
import time
from pathlib import Path

_time, _time_ns = time.time, time.time_ns


class WrongDatetime(datetime.datetime):
    """What the server's modules know as `datetime`."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "WrongDatetime":
        return datetime.datetime.fromtimestamp(time.time(), tz)  # type: ignore[return-value]


def main(shift: Path, arguments: list[str]) -> int:
    from server.cli import entry_point
    from server.process import serve

    assert serve

    def seconds() -> float:
        return float(shift.read_text())

    time.time = lambda: _time() + seconds()
    time.time_ns = lambda: _time_ns() + int(seconds() * 1e9)
    for name, module in list(sys.modules.items()):
        if name.startswith("server") and getattr(module, "datetime", None) is datetime.datetime:
            module.datetime = WrongDatetime  # type: ignore[attr-defined]
    return entry_point.main(arguments)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
