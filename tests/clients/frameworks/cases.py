"""What every client is asked, and how its script, `with_NAME.py URL MODEL KEY`, tells what came of it.

The words are those for which the server's model has answers. Needs nothing but the standard library, as each
client has an environment of its own.
"""

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

HELLO, AGAIN, CITIES, TYPED = "Say hello.", "Say hello again.", "Oslo and Rome?", "Typed weather!"
TOO_LONG = "word " * 60_000
"""More than the scripted model's 32,768 positions."""

EXPECTED: dict[str, object] = {
    "plain": "Hello there.",
    "stream": "Hello there.",
    "turns": "Hello again.",
    "tool": ["Both are sunny.", ["Oslo", "Rome"]],
    "structured": {"city": "Oslo", "degrees": 7},
    "usage": True,
    "bad key": 401,
    "unknown model": 404,
    "too long": 400,
}
"""What a client that works says to each case that it has."""

called: list[str] = []


def get_weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: The name of a city.
    """
    called.append(city)
    return f"Sunny in {city}, says the oracle."


def with_cities(answer: object) -> object:
    """The answer beside the cities that the tool was called with since the last time."""
    cities = sorted(called)
    called.clear()
    return [answer, cities]


@dataclass(frozen=True)
class Server:
    url: str
    model: str
    key: str


def status(call: Callable[[], object]) -> object:
    """The HTTP status by which a call failed, which its exception has, or one behind it."""
    try:
        return f"it succeeded: {call()!r}"
    except BaseException as error:  # noqa: BLE001 - some clients end the process
        seen: list[str] = []
        cause: BaseException | None = error
        while cause is not None and len(seen) < 10:
            found = _status_of(cause) or _status_of(getattr(cause, "response", None))
            if found is not None:
                return found
            seen.append(repr(cause))
            cause = cause.__cause__ or cause.__context__
        return seen


def _status_of(thing: object) -> int | None:
    found = (getattr(thing, name, None) for name in ("status_code", "status"))
    return next((status for status in found if isinstance(status, int)), None)


def print_results(cases: Callable[[Server], dict[str, dict[str, Callable[[], object]]]]) -> None:
    """Prints, as JSON, each case's value, or the traceback of what it raised, by API and name."""
    said: dict[str, dict[str, object]] = {}
    for api, named in cases(Server(*sys.argv[1:4])).items():
        said[api] = {}
        for name, case in named.items():
            try:
                said[api][name] = (
                    status(case) if isinstance(EXPECTED[name], int) and name != "usage" else case()
                )
            except Exception:  # noqa: BLE001 - whatever a client raises is told
                said[api][name] = traceback.format_exc()[-2000:]
    sys.stdout.write("\n" + json.dumps(said) + "\n")
