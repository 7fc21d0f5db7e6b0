import time
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol import ids
from tests.support.builders import RESPONSE


def test_a_new_uuid_is_a_version_7_of_the_present_millisecond() -> None:
    before = time.time_ns() // 1_000_000
    made = ids.new_uuid()
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, RFC_4122)
    assert before <= made.int >> 80 <= after


def test_no_two_uuids_are_equal() -> None:
    made = [ids.new_uuid() for _ in range(2000)]
    assert len({uuid.int & (2**62 - 1) for uuid in made}) == len(made)
    assert len({uuid.int >> 64 & 0xFFF for uuid in made}) > 500


@given(st.uuids())
def test_a_response_id_is_parsed_back(uuid: UUID) -> None:
    assert ids.parse_response_id(ids.response_id(uuid)) == uuid


@pytest.mark.parametrize(
    "text",
    [
        "",
        "resp_",
        RESPONSE.hex,
        f"msg_{RESPONSE.hex}",
        f"resp_{RESPONSE}",
        f"resp_{RESPONSE.hex}0",
        f"resp_{RESPONSE.hex[:-1]}",
        f"resp_{RESPONSE.hex[:-1]}g",
        f"resp_{RESPONSE.hex.upper()}",
        f"resp_{RESPONSE.hex[:-1]}٣",
        f"resp_{RESPONSE.hex[:-1]}\n",
        f" resp_{RESPONSE.hex}",
    ],
)
def test_an_id_that_this_server_cannot_have_made_is_none(text: str) -> None:
    assert ids.parse_response_id(text) is None


@given(st.text())
def test_any_text_is_parsed_or_none(text: str) -> None:
    assert ids.parse_response_id(text) is None


@given(st.lists(st.tuples(st.uuids(), st.sampled_from("io"), st.integers(0, 5000)), max_size=20, unique=True))
def test_items_of_different_places_have_different_ids(places: list[tuple[UUID, ids.ItemSource, int]]) -> None:
    assert len({ids.item_id("msg", *place) for place in places}) == len(places)
    assert all(len(ids.item_id("msg", *place)) <= 64 for place in places)
