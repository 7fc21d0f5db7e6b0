"""What a call for one token may sample."""

import pytest

from engine.remote.restriction import Restriction, restriction_of


def mask_of(*token_ids: int) -> bytes:
    return sum(1 << token_id for token_id in token_ids).to_bytes(8, "little")


ALLOWED, BANNED = Restriction(allowed=(0, 9, 11)), Restriction(banned=(1, 2, 3, 4, 5, 6, 7, 8, 10))


@pytest.mark.parametrize(
    ("most_allowed", "most_banned", "expected"),
    [(3, 0, ALLOWED), (3, 9, ALLOWED), (2, 9, BANNED), (0, 1024, BANNED), (2, 8, ALLOWED)],
)
def test_the_banned_tokens_are_named_where_the_server_takes_them_and_not_the_allowed_ones(
    most_allowed: int, most_banned: int, expected: Restriction
) -> None:
    found = restriction_of(mask_of(0, 9, 11), (), 12, most_allowed=most_allowed, most_banned=most_banned)
    assert found == expected
    assert [token_id for token_id in range(12) if found.permits(token_id)] == [0, 9, 11]


def test_bits_after_the_vocabulary_are_no_tokens() -> None:
    assert restriction_of(mask_of(3, 12, 13), (), 12, most_allowed=3, most_banned=0) == Restriction(
        allowed=(3,)
    )


def test_tokens_that_may_never_come_are_left_out() -> None:
    assert restriction_of(mask_of(3, 4, 5), (4, 7), 12, most_allowed=3, most_banned=0) == Restriction(
        allowed=(3, 5)
    )


def test_no_token_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="No token"):
        restriction_of(mask_of(3, 12), (3,), 12, most_allowed=3, most_banned=0)
