"""One connection to Postgres: what both ends are told, and how long a silent server is waited for.

A server that is gone without a word is noticed in three ways: the kernel gives up on bytes that nobody
acknowledges, a statement that is not answered is given up here, and the server drops a session of ours that
stays silent in the middle of a transaction, so that no lock outlives the one who held it.
"""

import select
from collections.abc import Generator
from datetime import UTC, datetime
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.abc import Buffer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import set_json_dumps, set_json_loads

REQUEST_TIMEOUTS = "-c statement_timeout=5s -c lock_timeout=1s -c idle_in_transaction_session_timeout=5s"
"""What the server holds every session to that serves requests or records them."""

RECORDER_TIMEOUTS = (
    "-c statement_timeout=600ms -c lock_timeout=250ms -c idle_in_transaction_session_timeout=5s"
)
"""The same for the commits that all streams of a process share: together with the commits run by run that
follow a failure, they make nobody wait for longer than a second for a row of somebody else."""

RESPONSE_TIMEOUT_S = 6.0
"""How long an answer may take: longer than the server's own limit, which is the one to be told of."""

PING_TIMEOUT_S = 2.0
"""How long the answer to nothing may take, which is asked before a connection is used again after a while."""

_CLIENT_KEEPALIVES = {
    "connect_timeout": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "6000",
}
"""libpq's words, for connections over TCP; the URL's own values win."""

_SERVER_KEEPALIVES = (
    "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 -c tcp_user_timeout=6000"
)
"""The same for the server's end, whose session would outlive a client that vanished by hours."""

_FIRST_TIME, _LAST_TIME = datetime(2, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""With a year left to add and subtract in."""

_T = TypeVar("_T")
_NO_RESPONSE = "the server does not answer"
_NOT_READY = 0
"""What psycopg tells a command that waits when nothing has come for a while."""


class TimeoutConnection(psycopg.Connection[Any]):
    """A connection whose commands raise OperationalError, and which is closed, when no answer comes in time.

    The time is for each exchange with the server; COPY of many rows is many.
    """

    patience = RESPONSE_TIMEOUT_S

    def wait(self, gen: Generator[Any, Any, _T], *args: Any, **kwargs: Any) -> _T:
        """Where psycopg waits for everything but connecting."""
        return super().wait(self._in_time(gen), *args, **kwargs)

    def _in_time(self, gen: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
        deadline = monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready == _NOT_READY and monotonic() > deadline and self._is_busy():
                    self.pgconn.finish()
                    raise psycopg.OperationalError(_NO_RESPONSE)
                wanted = gen.send(ready)
        except StopIteration as ended:
            result: _T = ended.value
            return result

    def is_silent(self) -> bool:
        """Whether nothing has come unasked, such as the word that the server ends. It asks nothing."""
        if self.closed:
            return False
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not poll.poll(0)

    def is_there(self) -> bool:
        """Whether the server answers to nothing, soon. It leaves no transaction behind."""
        self.patience = PING_TIMEOUT_S
        try:
            self.autocommit = True
            self.execute("")
            self.autocommit = False
        except psycopg.Error:
            return False
        finally:
            del self.patience
        return True

    def answers(self, *, refused: bool = False) -> list[PGresult]:
        """What the server says to what was sent through `pgconn`, to its end or to where it wants rows.

        Raises psycopg.Error, for answers that are errors too, unless they are to be `refused`.
        """
        poll = select.poll()
        poll.register(self.pgconn.socket)
        while self.pgconn.flush():
            self._await(poll, select.POLLOUT)
        found: list[PGresult] = []
        while True:
            while self.pgconn.is_busy():
                self._await(poll, select.POLLIN)
                self.pgconn.consume_input()
            result = self.pgconn.get_result()
            if result is None:
                return found
            found.append(result)
            if result.status == ExecStatus.COPY_IN:
                return found
            if result.status == ExecStatus.FATAL_ERROR and not refused:
                raise psycopg.errors.error_from_result(result)

    def _await(self, poll: select.poll, what: int) -> None:
        poll.modify(self.pgconn.socket, what)
        if not poll.poll(self.patience * 1000):
            self.pgconn.finish()
            raise psycopg.OperationalError(_NO_RESPONSE)

    def _is_busy(self) -> bool:
        """An answer is due; a session that waits for notifications is not."""
        return self.pgconn.transaction_status == TransactionStatus.ACTIVE


def connect(url: str, name: str, options: str) -> TimeoutConnection:
    """A connection on which JSON columns are text both ways.

    Only msgspec encodes, and what was stored comes back the same; `options` are added to the URL's own.
    """
    given = conninfo_to_dict(url).get("options") or ""
    connection = TimeoutConnection.connect(
        with_network_timeouts(url),
        application_name=name,
        options=f"{given} {_SERVER_KEEPALIVES} {options}".strip(),
    )
    set_json_dumps(_json_text, connection)
    set_json_loads(_json_text, connection)
    connection.adapters.register_loader("timestamptz", _TimeLoader)
    return connection


class _TimeLoader(TimestamptzLoader):
    """Postgres' times that Python has no datetime for, 'infinity' among them, become late or early ones.

    One such row would otherwise make every statement fail that reads it, with all the other rows.
    """

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            text = bytes(data)
            past = text.startswith(b"-") or text.endswith(b"BC")
            return _FIRST_TIME if past else _LAST_TIME


def with_network_timeouts(url: str) -> str:
    """The connection string with limits on the network's silence."""
    given = conninfo_to_dict(url)
    return make_conninfo(
        url, **{name: value for name, value in _CLIENT_KEEPALIVES.items() if name not in given}
    )


def _json_text(document: str | bytes) -> str:
    return document.decode() if isinstance(document, bytes) else document
