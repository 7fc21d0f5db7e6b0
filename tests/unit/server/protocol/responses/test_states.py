from itertools import product
from typing import get_args

import pytest

from server.protocol.responses.response import Status
from server.protocol.responses.states import EDGES, ENDED, EndStatus, is_edge

ALL: tuple[Status, ...] = get_args(Status)


def test_every_status_has_its_edges_and_leads_only_to_statuses() -> None:
    assert set(EDGES) == set(ALL)
    assert set().union(*EDGES.values()) <= set(ALL)


def test_the_ended_are_those_a_response_never_leaves() -> None:
    assert set(get_args(EndStatus)) == ENDED
    for old, new in product(ENDED, ALL):
        assert not is_edge(old, new)


@pytest.mark.parametrize("start", ["queued", "in_progress"])
def test_every_ending_can_be_reached_and_no_status_is_left_for_itself(start: Status) -> None:
    seen: set[Status] = set()
    ahead = [start]
    while ahead:
        status = ahead.pop()
        ahead += EDGES[status] - seen
        seen.add(status)
        assert not is_edge(status, status)
        assert not is_edge(status, "queued")
    assert seen >= ENDED
