"""Whether this machine lets sandboxes be made; where not, tests that need one are skipped with the reason."""

from functools import cache

import pytest

from tool_servers.runner.sandbox import CannotRun, SandboxLimits, check_sandbox, find_python


@cache
def _obstacle() -> str | None:
    try:
        check_sandbox(SandboxLimits(), find_python(None))
    except CannotRun as error:
        return str(error)
    return None


def need_sandboxes() -> None:
    """Skips the test where there can be none."""
    if (obstacle := _obstacle()) is not None:
        pytest.skip(obstacle)
