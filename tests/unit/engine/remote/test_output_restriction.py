"""The tokens that a call may sample, and their biases."""

from dataclasses import replace

import pytest

from engine.remote.engine_protocol import CallFault
from engine.remote.request_output import OutputRestriction, logit_biases, restriction_of
from tests.support.engines import make_request


def mask_of(*token_ids: int) -> bytes:
    return sum(1 << token_id for token_id in token_ids).to_bytes(8, "little")


ALLOWED, BANNED = (
    OutputRestriction(allowed=(0, 9, 11)),
    OutputRestriction(banned=(1, 2, 3, 4, 5, 6, 7, 8, 10)),
)


@pytest.mark.parametrize(
    ("most_allowed", "most_banned", "expected"),
    [(3, 0, ALLOWED), (3, 9, ALLOWED), (2, 9, BANNED), (0, 1024, BANNED), (2, 8, ALLOWED)],
)
def test_the_banned_tokens_are_named_where_the_server_takes_them_and_not_the_allowed_ones(
    most_allowed: int, most_banned: int, expected: OutputRestriction
) -> None:
    found = restriction_of(mask_of(0, 9, 11), (), 12, most_allowed=most_allowed, most_banned=most_banned)
    assert found == expected
    assert [token_id for token_id in range(12) if found.permits(token_id)] == [0, 9, 11]


def test_bits_after_the_vocabulary_are_no_tokens() -> None:
    assert restriction_of(mask_of(3, 12, 13), (), 12, most_allowed=3, most_banned=0) == OutputRestriction(
        allowed=(3,)
    )


def test_tokens_that_may_never_come_are_left_out() -> None:
    assert restriction_of(mask_of(3, 4, 5), (4, 7), 12, most_allowed=3, most_banned=0) == OutputRestriction(
        allowed=(3, 5)
    )


def test_no_token_at_all_is_an_error() -> None:
    with pytest.raises(CallFault, match="No token"):
        restriction_of(mask_of(3, 12), (3,), 12, most_allowed=3, most_banned=0)


SAMPLING = replace(make_request("a", [1]).sampling, logit_bias=((3, 1.0), (4, -2.0)))
PENALIZED = replace(SAMPLING, presence_penalty=0.5, frequency_penalty=1.0)


def test_a_request_without_penalties_has_its_own_biases() -> None:
    assert logit_biases(SAMPLING, [7, 7], None) == ((3, 1.0), (4, -2.0))


def test_earlier_output_is_penalized() -> None:
    assert logit_biases(PENALIZED, [3, 7, 7], None) == ((3, -0.5), (4, -2.0), (7, -2.5))


def test_where_a_server_takes_few_the_smallest_penalties_are_left_out() -> None:
    earlier = [3, 7, 7, 8, *[9] * 5]
    assert logit_biases(PENALIZED, earlier, 4) == ((3, -0.5), (4, -2.0), (7, -2.5), (9, -5.5))
    assert logit_biases(PENALIZED, earlier, 1) == ((3, -0.5),)
    assert logit_biases(PENALIZED, earlier, 0) == ()
