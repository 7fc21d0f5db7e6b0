"""Faults of what is around a database in memory: sessions that take no writes, rights that are missing."""

from dataclasses import dataclass, field
from typing import Literal

import psycopg
from sqlalchemy.exc import OperationalError, ProgrammingError

Table = Literal["responses", "items", "log", "usage"]


@dataclass
class Environment:
    """Times are the database's seconds."""

    read_only_until: float = 0.0
    forbidden: dict[Table, float] = field(default_factory=dict)
    """Tables to which the rights are missing, and until when."""

    def check_write(self, now: float) -> None:
        if now < self.read_only_until:
            error = psycopg.errors.ReadOnlySqlTransaction("cannot write in a read-only transaction")
            raise OperationalError("", None, error)

    def check_right(self, table: Table, now: float) -> None:
        if self.forbidden and now < self.forbidden.get(table, 0.0):
            error = psycopg.errors.InsufficientPrivilege(f"permission denied for table {table}")
            raise ProgrammingError("", None, error)

    def heal(self) -> None:
        self.read_only_until = 0.0
        self.forbidden.clear()
