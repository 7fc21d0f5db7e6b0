from itertools import product
from typing import get_args

import pytest

from server.protocol.responses.response import TERMINAL_STATUSES, Status
from tests.support.states import TRANSITIONS, is_transition

ALL: tuple[Status, ...] = get_args(Status)


def test_every_status_has_its_edges_and_leads_only_to_statuses() -> None:
    assert set(TRANSITIONS) == set(ALL)
    assert set().union(*TRANSITIONS.values()) <= set(ALL)


def test_the_ended_are_those_a_response_never_leaves() -> None:
    for old, new in product(TERMINAL_STATUSES, ALL):
        assert not is_transition(old, new)


@pytest.mark.parametrize("start", ["queued", "in_progress"])
def test_every_ending_can_be_reached_and_no_status_is_left_for_itself(start: Status) -> None:
    seen: set[Status] = set()
    ahead = [start]
    while ahead:
        status = ahead.pop()
        ahead += TRANSITIONS[status] - seen
        seen.add(status)
        assert not is_transition(status, status)
        assert not is_transition(status, "queued")
    assert seen >= TERMINAL_STATUSES
