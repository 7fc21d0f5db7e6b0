"""Where the programs of each supported major version of Postgres are on this machine, if they are.

`make postgres` fetches those that neither the system nor `holdfast[embedded]` has.
"""

from pathlib import Path

from server.embedded_postgres.binaries import bin_directory_of_major

MAJORS = (15, 16, 17, 18)
FETCHED = Path(__file__).parents[2] / ".postgres"


def programs(major: int) -> Path | None:
    """The directory of `postgres`, `initdb` and `pg_dump` of that version."""
    fetched = sorted((FETCHED / str(major)).glob("**/bin/postgres"))
    return fetched[0].parent if fetched else bin_directory_of_major(major)
