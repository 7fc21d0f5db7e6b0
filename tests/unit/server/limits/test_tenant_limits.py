from collections.abc import Callable
from typing import Any

import pytest

from server.caller import Caller, TenantSettings
from server.configuration.settings import Config
from server.errors import StorageQuotaExceeded
from server.limits.tenant_limits import (
    DEFAULT_TENANT_BYTES,
    FRESH_SECONDS,
    QueueLimits,
    StorageQuota,
    UnfinishedResponses,
)
from server.store.content import storage_usage

KEYED = Caller("alice", "k1")


class FakeDatabase:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.stored = {"alice": 10, "bob": 1}
        self.asked = 0

    def autocommit(self, work: Callable[[Any], int]) -> int:
        self.asked += 1
        return work(self)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> FakeDatabase:
    monkeypatch.setattr(storage_usage, "total", lambda connection, tenant: connection.stored[tenant])
    return FakeDatabase()


def make(database: FakeDatabase, per_tenant: int | None, clock: Callable[[], float]) -> StorageQuota:
    return StorageQuota(database, per_tenant, clock)  # type: ignore[arg-type]


def test_a_tenant_at_its_bound_is_refused_and_another_is_not(database: FakeDatabase) -> None:
    quota = make(database, 10, lambda: 0.0)
    quota.check(Caller("bob", "k2"))
    with pytest.raises(StorageQuotaExceeded, match="10 bytes") as refused:
        quota.check(KEYED)
    assert refused.value.code == "storage_quota_exceeded"
    assert refused.value.status == 429


def test_the_sum_is_read_once_for_all_requests_of_a_moment(database: FakeDatabase) -> None:
    now = [0.0]
    quota = make(database, 11, lambda: now[0])
    for _ in range(100):
        quota.check(KEYED)
    assert database.asked == 1
    database.stored["alice"] = 11
    now[0] = FRESH_SECONDS
    with pytest.raises(StorageQuotaExceeded):
        quota.check(KEYED)
    database.stored["alice"] = 1
    now[0] *= 2
    quota.check(KEYED)
    assert database.asked == 3


def test_nothing_is_read_while_there_is_no_bound(database: FakeDatabase) -> None:
    make(database, None, lambda: 0.0).check(Caller("alice", None))
    assert database.asked == 0


def test_a_tenant_with_a_key_has_a_bound_by_default() -> None:
    quota = StorageQuota(None, Config().max_stored_bytes_of_tenant)  # type: ignore[arg-type]
    assert quota.share(KEYED) == DEFAULT_TENANT_BYTES
    assert quota.share(Caller("alice", None)) is None
    assert StorageQuota(None, 5).share(Caller("alice", None)) == 5  # type: ignore[arg-type]


def test_a_tenants_own_settings_take_the_place_of_the_servers() -> None:
    own = Caller("a", "k", settings=TenantSettings(max_stored_bytes=7, max_queued=3, max_unfinished=4))
    assert StorageQuota(None, 5).share(own) == 7  # type: ignore[arg-type]
    assert QueueLimits(10, 2).share(own) == 3
    assert QueueLimits(2, None).share(own) == 2
    assert QueueLimits(10, 2).share(KEYED) == 2
    assert UnfinishedResponses(total=10, per_tenant=2).share(own) == 4
    assert UnfinishedResponses(total=3).share(own) == 3
    assert StorageQuota(None).share(Caller("a", None, settings=own.settings)) == 7  # type: ignore[arg-type]
