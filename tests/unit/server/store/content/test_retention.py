from hypothesis import given
from hypothesis import strategies as st

from server.store.content.retention import MOST_ROWS, Due, Place, fitting
from tests.support.builders import RESPONSE, TENANT, examples

weights = st.lists(st.integers(1, MOST_ROWS * 2), max_size=12)


def due(sizes: list[int]) -> list[Due]:
    return [Due(Place(TENANT, RESPONSE), None, live=True, weight=weight) for weight in sizes]


@given(weights, st.integers(0, MOST_ROWS))
@examples(300)
def test_the_first_that_have_room_together_are_taken(sizes: list[int], room: int) -> None:
    taken = fitting(due(sizes), room)
    assert taken == due(sizes)[: len(taken)]
    alone = len(taken) == 1 and room == MOST_ROWS
    assert sum(candidate.weight for candidate in taken) <= room or alone
    if len(taken) < len(sizes):
        assert sum(sizes[: len(taken) + 1]) > room


@given(st.lists(st.integers(1, MOST_ROWS * 2), min_size=1))
@examples(100)
def test_an_empty_batch_takes_one_at_least(sizes: list[int]) -> None:
    assert fitting(due(sizes), MOST_ROWS)
