"""The biases of a call."""

from dataclasses import replace

from engine.remote.logit_biases import logit_biases
from tests.support.engines import make_request

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
