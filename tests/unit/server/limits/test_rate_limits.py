import pytest

from server.limits.rate_limits import duration, rate_limit_headers
from server.limits.window_share import Standing


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0ms"),
        (0.0165, "17ms"),
        (0.9995, "1s"),
        (1, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (60, "1m0s"),
        (62.5, "1m2.5s"),
        (360, "6m0s"),
    ],
)
def test_a_duration_is_written_as_openai_does(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_only_what_is_limited_has_headers() -> None:
    assert rate_limit_headers({}) == {}
    assert rate_limit_headers({"tokens": Standing(100, 40, 1.5)}) == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "40",
        "x-ratelimit-reset-tokens": "1.5s",
    }
