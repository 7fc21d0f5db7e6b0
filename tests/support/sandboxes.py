"""Whether this machine lets sandboxes be made; where not, tests that need one are skipped with the reason."""

from functools import cache

import pytest

from runner.limits import Limits
from runner.python import find_python, try_out
from runner.sandbox import CannotRun


@cache
def _obstacle() -> str | None:
    try:
        try_out(Limits(), find_python(None))
    except CannotRun as error:
        return str(error)
    return None


def need_sandboxes() -> None:
    """Skips the test where there can be none."""
    if (obstacle := _obstacle()) is not None:
        pytest.skip(obstacle)
