"""`READABLE`: the condition by which a stored response exists for readers.

An expired response may wait for its partition to go, for up to a tenth of the retention; nobody can read it
then. The condition leaves out what ended a short time ago: whoever follows it is to see its end.
"""

from typing import Final

from sqlalchemy import and_, or_, text

from server.store.tables import responses

JUST_ENDED: Final = "1 hour"
"""Longer than anybody takes who follows a response (`quiet_seconds` of retention)."""
READABLE: Final = and_(
    responses.c.deleted_at.is_(None),
    or_(
        responses.c.expires_at.is_(None),
        responses.c.expires_at > text("statement_timestamp()"),
        responses.c.finished_at.is_(None),
        responses.c.finished_at > text(f"statement_timestamp() - interval '{JUST_ENDED}'"),
    ),
)
