"""Approvals in the database: for which response they are spent, and how long that is known."""

from uuid import UUID

import pytest

from server.errors import Conflict
from server.hosted_tools.approved_calls import spend_approvals
from server.protocol import ids
from server.store.content import idempotency_keys
from tests.integration.recording.recorded import Bench
from tests.integration.recording.test_audit import answer, begin
from tests.support.builders import TENANT
from tests.support.invariants import check


def test_an_approval_goes_on_only_from_a_response_that_ended_without_its_call(
    bench: Bench, database_url: str
) -> None:
    asking, ended, running, later = (*(answer(bench) for _ in range(2)), begin(bench), ids.new_uuid())
    request = ids.item_id("mcpr", asking, "o", 1)

    def spend(response: UUID) -> UUID | None:
        with bench.database.begin() as connection:
            spend_approvals(connection, TENANT, {f"{request}_{'0' * 32}": request}, response)
            return idempotency_keys.owner(connection, TENANT, request)

    assert [spend(ended), spend(ended), spend(running), spend(running)] == [ended, ended, running, running]
    with pytest.raises(Conflict, match=ids.response_id(running)):
        spend(later)
    with bench.database.begin() as connection:
        assert idempotency_keys.owner(connection, TENANT, request) == running
        assert idempotency_keys.owner(connection, "other", request) is None
    check(database_url)


def test_a_spent_approval_is_known_as_long_as_a_response_that_can_bring_it(bench: Bench) -> None:
    asking, making, gone = answer(bench), answer(bench), ids.new_uuid()
    requests = [ids.item_id("mcpr", response, "o", 1) for response in (asking, gone, gone)]
    requests[2] += "0"
    with bench.database.begin() as connection:
        for request, response in zip(requests, (gone, making, gone), strict=True):
            assert idempotency_keys.spend(connection, TENANT, request, response) == response
            assert idempotency_keys.spend(connection, TENANT, request, ids.new_uuid()) == response
        assert idempotency_keys.delete_old_keys(connection) == 0
        connection.exec_driver_sql("update idempotency_keys set created_at = now() - interval '2 days'")
        assert idempotency_keys.delete_old_keys(connection) == 1
        owners = [idempotency_keys.owner(connection, TENANT, request) for request in requests]
        assert owners == [gone, making, None]
