"""Family: one model family's tokens, and what it writes for the calls of the tests."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """One family's tokens, and the words with which it calls `get_weather` and `get_time`."""

    name: str
    special: str
    plain: str = ""
    """Added tokens, special and not, with blanks between."""
    eos: str = ""
    call: str = ""
    """What the model writes to call get_weather with city "Paris", days 2."""
    two: str = ""
    """Two calls: that one, and get_time without arguments."""
    patch: str = ""
    """A call of the custom tool `patch` with the input `a "b"`, a line break, `c`."""
    call_id: str | None = None
    """The id in `call`, where there is one."""
    open: str = ""
    close: str = ""
    """Around reasoning."""

    @property
    def added(self) -> list[str]:
        return f"{self.special} {self.plain}".split()
