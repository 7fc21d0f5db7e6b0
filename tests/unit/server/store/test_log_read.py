from itertools import islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol.responses.events import Event, Kind
from server.store import log_append, log_read
from tests.support.builders import RESPONSE, TENANT, examples

commits = st.lists(st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=6), max_size=8)


def folded(commits: list[list[str | None]]) -> tuple[log_read.FoldedStream, list[Event]]:
    """Commits of deltas, and of whole events where there is None, as they are stored when all is over."""
    made: list[Event] = []
    rows: list[log_append.NewLogRow] = []
    for commit in commits:
        new = [
            Event(number, Kind.OUTPUT_TEXT_DELTA, 0, 0, said)
            if said is not None
            else Event(number, Kind.WHOLE, 0, 0, "{}")
            for number, said in enumerate(commit, len(made))
        ]
        made += new
        rows += log_append.encode_rows(TENANT, RESPONSE, 1, new, [])
    body = [
        (
            row.first_seq,
            row.n,
            row.kind,
            row.output_index,
            row.content_index,
            1.5,
            msgspec.Raw(row.body),
            1,
        )
        for row in rows
    ]
    return log_read.FoldedStream(msgspec.json.encode(body).decode()), made


@given(commits)
@examples(100)
def test_rows_give_every_end_of_a_stream(commits: list[list[str | None]]) -> None:
    stream, made = folded(commits)
    assert stream.end == len(made)
    for first in range(len(made) + 2):
        assert [event for event, _ in stream.read(first)] == made[first:]


def test_a_long_stream_that_is_read_in_pages_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, made = folded([["a"] * 3] * 500)
    decoded = 0

    def unpack(*row: object) -> list[Event]:
        nonlocal decoded
        decoded += 1
        return plain(*row)  # type: ignore[arg-type]  # a row's fields

    plain = log_read.decode_row
    monkeypatch.setattr(log_read, "decode_row", unpack)
    read: list[Event] = []
    pages = 0
    while page := list(islice(stream.read(len(read)), 50)):
        read += [event for event, _ in page]
        pages += 1
    assert read == made
    assert decoded <= 500 + pages
