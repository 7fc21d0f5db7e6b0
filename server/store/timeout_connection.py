"""`TimeoutConnection`: one psycopg connection, its settings, keepalives and ping; `connect`.

Settings such as time limits are sent at the start of a session. Where a pooler gives each transaction another
session they would be lost, or hold for other clients, so every transaction begins with them instead.

A lost peer is noticed in three ways: the kernel gives up on unacknowledged bytes (`tcp_user_timeout`), the
client gives up on a result after `RESPONSE_TIMEOUT_S`, and the server ends a session that is idle in a
transaction, so that no lock outlives its owner.
"""

import re
import select
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg import IsolationLevel, generators
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import set_json_dumps, set_json_loads

SessionSettings: TypeAlias = Mapping[str, str]
"""Postgres' settings of a session, by name. Names and values are constants of ours without quotes."""
REQUEST_TIMEOUTS: SessionSettings = {
    "statement_timeout": "5s",
    "lock_timeout": "1s",
    "idle_in_transaction_session_timeout": "5s",
}
RECORDER_TIMEOUTS: SessionSettings = {
    "statement_timeout": "600ms",
    "lock_timeout": "250ms",
    "idle_in_transaction_session_timeout": "5s",
}
"""Timeouts of the recorder's session, whose commits all streams of a process share. Together with the
commits of single runs that follow a failure, a locked row delays other streams by a second at most."""
_SYNCHRONOUS_COMMIT = re.compile(r"synchronous[-_]commit\s*=\s*'?(\w+)")
RESPONSE_TIMEOUT_S = 6.0
"""Seconds for a result: more than `statement_timeout`, so that the server's error arrives first."""
PING_TIMEOUT_S = 2.0
"""Seconds for the empty query that checks a pooled connection after a pause."""
_CLIENT_KEEPALIVES = {
    "connect_timeout": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "6000",
}
"""libpq parameters for connections over TCP; the URL's own values override them."""
_SERVER_KEEPALIVES: SessionSettings = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "6000",
}
"""Keepalives of the server's end; without them a session outlives its vanished client by hours."""
_FIRST_TIME, _LAST_TIME = datetime(2, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""A year within `datetime`'s range, so that time zones and intervals can be added."""
_T = TypeVar("_T")
_NO_RESPONSE = "the server does not answer"
_FORGOTTEN = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported)
"""The server has dropped a prepared statement, or cannot execute it after a change of its tables."""
_NOT_READY = 0
"""psycopg's Ready value for a wait that timed out."""


class _Statement(NamedTuple):
    """A statement as libpq takes it: values as texts or bytes, the oids of their types, their formats."""

    query: bytes
    parameters: Sequence[Buffer | None]
    types: Sequence[int]
    formats: Sequence[Format]


class TimeoutConnection(psycopg.Connection[Any]):
    """A connection that is closed, with OperationalError, when a result takes over `timeout_seconds`."""

    timeout_seconds = RESPONSE_TIMEOUT_S
    statement_seconds = RESPONSE_TIMEOUT_S
    """The session's `statement_timeout`, which is added for each statement more of an exchange: Postgres
    sends no result before the last."""
    transaction_settings: SessionSettings = MappingProxyType({})
    """Settings with which every transaction begins, since its session may be another client's before and
    after. Statements in autocommit mode run without them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._statements: dict[tuple[bytes, Sequence[int]], bytes] = {}
        """The names of the statements that `run` has prepared, by text and types of values."""
        self._numbers = count()
        self._later: list[_Statement] = []
        """Statements of this transaction that wait for the next one."""
        self._adapter = Transformer(self)
        self._awaited = 1
        """How many statements are answered together, as a pipeline's are."""

    def begin_command(self) -> bytes:
        """BEGIN and the settings of the transaction, for one exchange with the server."""
        settings = [f"SET LOCAL {name} = '{value}'" for name, value in self.transaction_settings.items()]
        return b"; ".join([self._get_tx_start_command(), *(setting.encode() for setting in settings)])

    def run(
        self, query: str, values: Sequence[object] = (), *, prepare: bool = True, begins: bool = True
    ) -> list[tuple[Any, ...]]:
        """The rows of a statement with parameters $1, $2, …, in a fourth of the calls of psycopg's cursors.

        It begins a transaction where there is none, unless `begins` is false. It is prepared, if it has
        values or `prepare` says so, where sessions of Postgres are one's own.
        """
        statement = self._encode(query, values)
        begin = self._begin() if begins else b""
        later, self._later = self._later, []
        if values or prepare:
            if begin:
                self.pgconn.send_query(begin)
                self._answer()
            result = self._together([*later, statement])
        else:
            if any(earlier.parameters for earlier in later):
                self._together(later)
                later = []
            texts = [*(earlier.query for earlier in later), statement.query]
            self.pgconn.send_query(b"; ".join([begin, *texts] if begin else texts))
            result = self._answer()
        self._adapter.set_pgresult(result)
        rows = self._adapter.load_rows(0, result.ntuples, tuple)
        self._adapter.set_pgresult(None)  # its memory is not kept until the next statement
        return rows

    def _begin(self) -> bytes:
        """The command with which a transaction has to begin; empty in one, and in autocommit mode."""
        is_idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        return self.begin_command() if is_idle and not self.autocommit else b""

    def later(self, query: str, values: Sequence[object] = ()) -> None:
        """Has a statement whose rows are not needed sent with the transaction's next one, or its commit.

        What it does wrong is raised there; values that cannot be sent are refused here. Not in savepoints,
        whose rollback would send it.
        """
        if self.pgconn.transaction_status == TransactionStatus.INTRANS:
            self._later.append(self._encode(query, values))
        else:
            self.run(query, values, prepare=bool(values))

    def _encode(self, query: str, values: Sequence[object]) -> "_Statement":
        """Raises psycopg.DataError or UnicodeEncodeError for a value that cannot be sent."""
        parameters = self._adapter.dump_sequence(values, [PyFormat.AUTO] * len(values))
        return _Statement(query.encode(), parameters, self._adapter.types or (), self._adapter.formats or ())

    def _together(self, statements: Sequence["_Statement"]) -> PGresult:
        """The last result of statements that are sent in one exchange; prepares those that are new."""
        calls = [self._sending(statement) for statement in statements]
        if len(calls) == 1:
            calls[0]()
            return self._answer()
        self.pgconn.enter_pipeline_mode()
        for send in calls:
            send()
        self.pgconn.pipeline_sync()
        self._awaited = len(calls)
        try:
            return self._answer(in_pipeline=True)
        finally:
            self._awaited = 1

    def _sending(self, statement: "_Statement") -> Callable[[], None]:
        """The call that sends a statement, which is prepared first if it is new in a session of one's own."""
        query, parameters, types, formats = statement
        if self.transaction_settings:
            return partial(self.pgconn.send_query_params, query, parameters, types, formats)
        name = self._statements.get((query, types))
        if name is None:
            name = b"holdfast_%d" % next(self._numbers)
            self.pgconn.send_prepare(name, query, types)
            self._answer()
            self._statements[query, types] = name
        return partial(self.pgconn.send_query_prepared, name, parameters, formats)

    def _answer(self, *, in_pipeline: bool = False) -> PGresult:
        """The last result of what was sent. Raises psycopg.Error for an error, also of its commit."""
        results: list[PGresult] = []
        try:
            while not results or (in_pipeline and results[-1].status != ExecStatus.PIPELINE_SYNC):
                received = self.wait(generators.execute(self.pgconn))
                if not received:
                    raise psycopg.OperationalError(_NO_RESPONSE)
                results += received
        except psycopg.OperationalError:  # the server may have said why before it went
            self._raise_errors(results)
            raise
        if in_pipeline:
            results.pop()
            self.pgconn.exit_pipeline_mode()
        self._raise_errors(results)
        return results[-1]

    def _raise_errors(self, results: Sequence[PGresult]) -> None:
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                error = psycopg.errors.error_from_result(result)
                if isinstance(error, _FORGOTTEN):
                    self._statements.clear()
                raise error

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """Overrides the method with which all else that psycopg executes begins."""
        later, self._later = self._later, []
        if later:
            self._together(later)
        elif self.transaction_settings and (begin := self._begin()):
            self.pgconn.send_query(begin)
            self._answer()
        return super().cursor(*args, **kwargs)

    def commit(self) -> None:
        """Commits the transaction, if there is one, in one exchange with what is to be sent later.

        The transaction has ended also where it raises, as SQLAlchemy takes for granted.
        """
        if not self._later:
            super().commit()
            return
        try:
            self.run("commit")
        except BaseException:
            with suppress(psycopg.Error):
                self.rollback()
            raise

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """Overrides the method in which psycopg drops its prepared statements, ours with them."""
        if name is None:
            self._statements.clear()
        yield from super()._deallocate(name)

    def run_alone(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of `run` in a transaction of its own.

        It takes one exchange with the server; three where a transaction begins with settings.
        """
        if self.transaction_settings:
            rows = self.run(query, values)
            self.commit()
            return rows
        try:
            return self.run(query, values, begins=False)
        except _FORGOTTEN:
            return self.run(query, values, begins=False)

    def copy_in(self, statement: str, data: bytes) -> None:
        """Executes a COPY from the client."""
        self.run(statement, prepare=False)
        self.pgconn.put_copy_data(data)
        self.pgconn.put_copy_end()
        self._answer()

    def rollback(self) -> None:
        """Rolls back the transaction, if there is one: the pool asks for it whenever it gets one back."""
        self._later.clear()
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            super().rollback()

    def wait(self, gen: Generator[Any, Any, _T], *args: Any, **kwargs: Any) -> _T:
        """Overrides the method through which psycopg waits for everything except connecting."""
        return super().wait(self._with_timeout(gen), *args, **kwargs)

    def _with_timeout(self, gen: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
        deadline = monotonic() + self.timeout_seconds + self.statement_seconds * (self._awaited - 1)
        try:
            events = next(gen)
            while True:
                ready = yield events
                if ready == _NOT_READY and monotonic() > deadline and self._is_busy():
                    self.pgconn.finish()
                    raise psycopg.OperationalError(_NO_RESPONSE)
                events = gen.send(ready)
        except StopIteration as ended:
            result: _T = ended.value
            return result

    def has_no_input(self, seconds: float = 0.0) -> bool:
        """Whether nothing is to be read from the socket, and nothing comes in so long. Sends nothing."""
        if self.closed:
            return False
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not poll.poll(seconds * 1000)

    def responds(self) -> bool:
        """Whether the server answers an empty query within `PING_TIMEOUT_S`. Starts no transaction."""
        self.timeout_seconds = PING_TIMEOUT_S
        try:
            self.autocommit = True
            self.execute("")
            self.autocommit = False
        except psycopg.Error:
            return False
        finally:
            del self.timeout_seconds
        return True

    def read_results(self, *, allow_errors: bool = False) -> list[PGresult]:
        """The results of what was sent through `pgconn`: all of them, or up to the start of COPY.

        Raises psycopg.Error, also for a result that is an error unless `allow_errors`.
        """
        results: list[PGresult] = self.wait(generators.execute(self.pgconn))
        if not allow_errors:
            self._raise_errors(results)
        return results

    def _is_busy(self) -> bool:
        """Whether a result is due, unlike for a session that waits for notifications."""
        return self.pgconn.transaction_status == TransactionStatus.ACTIVE


def connect(url: str, name: str, settings: SessionSettings, *, pooled: bool = False) -> TimeoutConnection:
    """A connection that reads and writes JSON columns as text, so that stored JSON keeps its bytes.

    `settings` hold for the session, besides those in the URL. With `pooled`, where a pooler may give each
    transaction another session, they hold for each transaction, and no statement is prepared.
    """
    if pooled:
        connection = TimeoutConnection.connect(
            with_network_timeouts(url), application_name=name, prepare_threshold=None
        )
        connection.transaction_settings = settings
        connection.isolation_level = IsolationLevel.READ_COMMITTED
    else:
        url_options = conninfo_to_dict(url).get("options") or ""
        options = " ".join(f"-c {name}={value}" for name, value in {**_SERVER_KEEPALIVES, **settings}.items())
        connection = TimeoutConnection.connect(
            with_network_timeouts(url), application_name=name, options=f"{url_options} {options}".strip()
        )
    if limit := settings.get("statement_timeout"):
        connection.statement_seconds = float(limit.rstrip("ms")) / (1000 if limit.endswith("ms") else 1)
    set_json_dumps(_json_text, connection)
    set_json_loads(_json_text, connection)
    connection.adapters.register_loader("timestamptz", _TimeLoader)
    return connection


class _TimeLoader(TimestamptzLoader):
    """Loads times outside `datetime`'s range, such as 'infinity', as the nearest early or late one."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            text = bytes(data)
            past = text.startswith(b"-") or text.endswith(b"BC")
            return _FIRST_TIME if past else _LAST_TIME


def synchronous(url: str) -> SessionSettings:
    """The setting with which commits wait for the disk: `on`, or the value that the URL's `options` name."""
    named = _SYNCHRONOUS_COMMIT.findall(str(conninfo_to_dict(url).get("options") or ""))
    return {"synchronous_commit": named[-1] if named else "on"}


def with_network_timeouts(url: str) -> str:
    """The connection string with keepalives and timeouts for TCP; of several hosts, the one that takes writes
    is used.
    """
    url_parameters = conninfo_to_dict(url)
    parameters = dict(_CLIENT_KEEPALIVES)
    if "," in f"{url_parameters.get('host', '')}{url_parameters.get('hostaddr', '')}":
        parameters["target_session_attrs"] = "read-write"
    return make_conninfo(
        url, **{name: value for name, value in parameters.items() if name not in url_parameters}
    )


def _json_text(document: str | bytes) -> str:
    return document.decode() if isinstance(document, bytes) else document
