"""What a request goes on from is read as of one moment, so that a purge meanwhile takes nothing out of it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Connection, text

from server.admission import compact_endpoint
from server.admission.prepare_runs import ParsedCreate, RunPreparation
from server.caller import Caller
from server.errors import NotFound
from server.limits.tenant_limits import HistoryReads, QueueLimits
from server.protocol.responses.request import CreateResponse
from server.request_input import resolve_input
from server.store.database import Database
from tests.support.server_process import MODEL

REQUEST = CreateResponse(model=MODEL, input="Hello", previous_response_id="resp_1")
SERVED: Any = SimpleNamespace(names=[MODEL], seal=None, images=None)


def admitted(database: Database) -> None:
    preparation = RunPreparation(SERVED, database, cast("Any", None), HistoryReads(), QueueLimits(1, None))
    preparation.prepare_runs(ParsedCreate(caller=Caller("default", None), choices=[REQUEST], input_items=[]))


def counted(database: Database) -> None:
    preparation = RunPreparation(SERVED, database, cast("Any", None), HistoryReads(), QueueLimits(1, None))
    preparation.count_tokens(Caller("default", None), REQUEST)


def compacted(database: Database) -> None:
    compact_endpoint.start_compaction(database, SERVED, Caller("default", None), REQUEST, HistoryReads())


@pytest.mark.parametrize("prepare", [admitted, counted, compacted])
def test_history_of_a_request_is_of_one_moment(
    database_url: str, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Database], None]
) -> None:
    found = []

    def gather(connection: Connection, *_: object, **__: object) -> None:
        found.append(connection.execute(text("show transaction_isolation")).scalar_one())
        raise NotFound("Enough.")

    monkeypatch.setattr(resolve_input, "read_stored_input", gather)
    database = Database(database_url, pool_size=1)
    try:
        with pytest.raises(NotFound):
            prepare(database)
    finally:
        database.close()
    assert found == ["repeatable read"]
