"""Whether everything that must hold of stored responses does, whatever a test did to the servers before.

`check` is the end of every test of faults. `watch_statuses` adds a trigger to a test's database, so that
`check` also sees whether every change of a status was one that `states.py` has.
"""

from collections.abc import Sequence
from contextlib import closing

import psycopg

from server.maintenance.audit_responses import AuditLimits, Violation
from server.maintenance.audit_run import Tally, audit_connection, violations
from server.store.audit_snapshot import Scope
from server.store.database import Database
from tests.support import states

AT_REST = AuditLimits(grace_seconds=30, waiting_seconds=60, key_seconds=0)
"""Promise P2, and no request that is still under way."""

_WATCH = """
    create table if not exists watched_statuses (
        id uuid not null, old text, new text not null, at timestamptz not null default clock_timestamp());
    create or replace function watch_status() returns trigger language plpgsql as $$ begin
        insert into watched_statuses (id, old, new)
            values (new.id, case when tg_op = 'UPDATE' then old.status end, new.status);
        return new;
    end $$;
    create or replace trigger watch_insert after insert on responses
        for each row execute function watch_status();
    create or replace trigger watch_update after update on responses
        for each row when (old.status is distinct from new.status) execute function watch_status();
"""
_WATCHED = "select id, old, new from watched_statuses order by at"


def check(database_url: str, limits: AuditLimits = AT_REST) -> None:
    """Fails with everything that is wrong in the database."""
    wrong = [str(violation) for violation in find(database_url, limits)] + strange_changes(database_url)
    assert wrong == [], "\n".join(wrong)


def find(database_url: str, limits: AuditLimits = AT_REST, scope: Scope | None = None) -> list[Violation]:
    """What is wrong in the database."""
    database = Database(database_url, pool_size=1)
    with closing(database), audit_connection(database) as connection:
        return list(violations(connection, scope or Scope(), limits, Tally()))


def watch_statuses(database_url: str) -> None:
    """Notes from now on how every response's status begins and changes."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(_WATCH)


def strange_changes(database_url: str) -> list[str]:
    """The changes noted that no edge of `states.py` allows; none where nothing watches."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        watched = connection.execute("select to_regclass('watched_statuses') is not null").fetchone()
        rows: Sequence[tuple[object, ...]] = ()
        if watched is not None and watched[0]:
            rows = connection.execute(_WATCHED).fetchall()
    return [
        f"{name}: its status went from {old} to {new}" for name, old, new in rows if not _is_way(old, new)
    ]


def _is_way(old: object, new: object) -> bool:
    if old is None:
        return new in states.TRANSITIONS and new not in states.TERMINAL_STATUSES
    return any(states.is_transition(before, new) for before in states.TRANSITIONS if before == old)  # type: ignore[arg-type]
