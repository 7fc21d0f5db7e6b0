"""Whether the cluster keeps what it has confirmed: settings that make a commit less than what it promises.

`probe` asks; `complaints` is pure and says what an operator must know. Some storage, such as that of managed
databases, is safe with settings that are unsafe on a disk, so these are warnings and never refusals.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict

from server.store.timeout_connection import REQUEST_TIMEOUTS, as_database_error, connect, synchronous

_PROBE = """
    select current_setting('fsync', true), current_setting('full_page_writes', true),
           current_setting('synchronous_commit', true), current_setting('synchronous_standby_names', true),
           pg_is_in_recovery()
"""
"""Settings as a server's session has them: of the cluster, the database, the role and the URL."""


STANDBY = (
    "The database is a standby, which takes no writes: point the URL at the primary, or name all hosts in it "
    "with target_session_attrs=read-write."
)


@dataclass(frozen=True, slots=True)
class DurabilitySettings:
    """Settings of a server's session; None where Postgres does not know one."""

    fsync: str | None
    full_page_writes: str | None
    synchronous_commit: str | None
    synchronous_standby_names: str | None
    in_recovery: bool
    hosts: int = 1
    """The number of hosts that the URL names."""


def probe(url: str, *, pooled: bool) -> DurabilitySettings:
    """The settings behind a URL. Raises DatabaseError."""
    try:
        settings = {**synchronous(url), **REQUEST_TIMEOUTS}
        with closing(connect(url, "holdfast", settings, pooled=pooled)) as connection:
            row = connection.execute(_PROBE).fetchone()
    except psycopg.Error as error:
        raise as_database_error("probe", error) from error
    assert row is not None
    fsync, full_page_writes, commit, standbys, in_recovery = row
    return DurabilitySettings(fsync, full_page_writes, commit, standbys, in_recovery, _hosts(url))


def _hosts(url: str) -> int:
    parameters = conninfo_to_dict(url)
    return max(len(str(parameters.get(name) or "").split(",")) for name in ("host", "hostaddr"))


def complaints(settings: DurabilitySettings) -> Iterator[str]:
    """A sentence for each setting by which less is kept than clients have seen, with what to do."""
    if settings.in_recovery:
        yield STANDBY
    if settings.fsync == "off":
        yield (
            "The cluster has fsync = off, so a power cut can lose or destroy everything in it: set it to on, "
            "unless the storage itself keeps what is written."
        )
    if settings.full_page_writes == "off":
        yield (
            "The cluster has full_page_writes = off, so a power cut can leave torn pages: set it to on, "
            "unless the storage writes whole pages."
        )
    if settings.synchronous_commit == "off":
        yield (
            "The database URL has synchronous_commit = off, so a crash of Postgres can lose responses that "
            "clients have been told of: leave it out of the URL."
        )
    if settings.hosts > 1 and not settings.in_recovery and settings.synchronous_standby_names == "":
        yield (
            "The URL names several hosts, and the primary waits for no standby, so a failover can lose the "
            "last responses that clients have seen: set synchronous_standby_names."
        )
