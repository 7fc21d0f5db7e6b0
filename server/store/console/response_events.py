"""The log of one response of any tenant with times and attempts: a page of its rows, running or ended."""

from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from server.store.console.time_limit import TIME_LIMIT_MS
from server.store.log_read import STREAM_BODY, CompactedStream, LogRow

MAX_STREAM_BYTES: Final = 64 * 1024 * 1024
"""The largest compacted stream that is shown; one of 100,000 events has about 10 MB."""
MAX_ROWS: Final = 200_000
"""Rows of a running response that are shown; a row has at least one event."""


class LogPage(NamedTuple):
    """Consecutive rows of a log."""

    rows: list[LogRow]
    end: int
    """The sequence number after the last event that was committed."""


_HOT = text("""
    select first_seq, n, kind, output_index, content_index, at, body, attempt from response_events_hot
    where tenant = :tenant and response_id = :id and first_seq + n > :first order by first_seq limit :limit
""")
_HOT_END = text("""
    select first_seq + n from response_events_hot where tenant = :tenant and response_id = :id
    order by first_seq desc limit 1
""")
_STREAM = text(f"""
    select s.last_seq + 1, case when octet_length(s.body) <= {MAX_STREAM_BYTES} then {STREAM_BODY} end
    from response_streams s left join responses r on r.tenant = s.tenant and r.id = s.response_id
    where s.tenant = :tenant and s.response_id = :id
""")


def read_log(
    connection: Connection, tenant: str, response: UUID, first: int = 0, limit: int = MAX_ROWS
) -> LogPage | None:
    """At most `limit` rows, from the one with sequence number `first` on.

    None if its stream is longer than `MAX_STREAM_BYTES`. Hot rows are read first: the end of a response moves
    them into the compacted stream in one transaction.
    """
    connection.execute(text(f"set local statement_timeout = {TIME_LIMIT_MS}"))
    of = {"tenant": tenant, "id": response}
    end = connection.scalar(_HOT_END, of)
    if end is not None:
        rows = connection.execute(_HOT, {**of, "first": first, "limit": limit})
        return LogPage(
            [
                LogRow(seq, n, kind, output, content, at, msgspec.Raw(body.encode()), attempt)
                for seq, n, kind, output, content, at, body, attempt in rows
            ],
            end,
        )
    stream = connection.execute(_STREAM, of).first()
    if stream is None:
        return LogPage([], 0)
    end, body = stream
    if body is None:
        return None
    return LogPage(list(islice(CompactedStream(body).rows(first), limit)), end)
