"""The tokens around a model's reasoning, by which its length can be limited."""

import pytest

from server.model_formats.harmony.vocabulary import CHANNEL, END, MESSAGE
from tests.support.families import THINKERS, format_of, ids_of
from tests.support.family_formats import FAMILIES
from tests.support.harmony import harmony_format


@pytest.mark.parametrize("name", THINKERS)
def test_marks_are_the_familys_own_where_its_reasoning_ends_with_one_token(name: str) -> None:
    marks = format_of(name).reasoning_marks
    family = FAMILIES[name]
    end = ids_of(name, family.close.strip())
    if len(end) > 1:
        assert marks is None
    else:
        assert marks is not None
        assert marks.end == tuple(end)
        assert marks.start == tuple(ids_of(name, family.open.strip()))


def test_gpt_oss_thinks_in_a_message_of_its_own() -> None:
    marks = harmony_format().reasoning_marks
    assert (marks.start[0], marks.start[-1], marks.end) == (CHANNEL, MESSAGE, (END,))
    assert len(marks.start) == 3
