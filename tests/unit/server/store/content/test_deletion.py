from hypothesis import given
from hypothesis import strategies as st

from server.store.content.deletion import MAX_BATCH_ROWS, ExpiredResponse, within_row_limit
from server.store.content.responses import ResponseKey
from tests.support.builders import RESPONSE, TENANT, examples

weights = st.lists(st.integers(1, MAX_BATCH_ROWS * 2), max_size=12)


def due(sizes: list[int]) -> list[ExpiredResponse]:
    return [
        ExpiredResponse(ResponseKey(TENANT, RESPONSE), None, live=True, weight=weight) for weight in sizes
    ]


@given(weights, st.integers(0, MAX_BATCH_ROWS))
@examples(300)
def test_the_first_that_have_room_together_are_taken(sizes: list[int], room: int) -> None:
    taken = within_row_limit(due(sizes), room)
    assert taken == due(sizes)[: len(taken)]
    alone = len(taken) == 1 and room == MAX_BATCH_ROWS
    assert sum(candidate.weight for candidate in taken) <= room or alone
    if len(taken) < len(sizes):
        assert sum(sizes[: len(taken) + 1]) > room


@given(st.lists(st.integers(1, MAX_BATCH_ROWS * 2), min_size=1))
@examples(100)
def test_an_empty_batch_takes_one_at_least(sizes: list[int]) -> None:
    assert within_row_limit(due(sizes), MAX_BATCH_ROWS)
