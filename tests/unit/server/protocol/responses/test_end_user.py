import pytest

from server.protocol.responses.request import MAX_END_USER, end_user


@pytest.mark.parametrize(
    ("user", "safety_identifier", "found"),
    [
        ("ana", None, "ana"),
        ("ana", "s-1", "ana"),
        (None, "s-1", "s-1"),
        ("", "s-1", "s-1"),
        (None, None, None),
        ("", "", None),
        ("a\0na", None, "ana"),
        ("\0", None, None),
        (None, "\0", None),
        ("x" * 9999, None, "x" * MAX_END_USER),
    ],
)
def test_an_end_user_is_the_user_or_the_safety_identifier(
    user: str | None, safety_identifier: str | None, found: str | None
) -> None:
    assert end_user(user, safety_identifier) == found
