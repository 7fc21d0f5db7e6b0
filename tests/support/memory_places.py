"""`installed`: the functions of `memory_store` in the place of those that send SQL."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

from server.recording import group_commit, lone_commit, write_updates
from server.store import commit_probe, log_append, log_read
from server.store.administration import ledger
from server.store.cluster import claims, leases
from server.store.content import (
    deletion,
    idempotency_keys,
    images,
    responses,
    storage_usage,
    stored_items,
)
from server.store.webhooks import outbox
from tests.support import memory_images, memory_log, memory_store

PLACES: dict[ModuleType, dict[str, Any]] = {
    leases: {
        "fence": memory_store.fence,
        "write_heartbeat": memory_store.write_heartbeat,
        "expire_replicas": memory_store.expire_replicas,
        "release_orphans": memory_store.release_orphans,
        "other_heartbeats": memory_store.other_heartbeats,
        "remotely_read": memory_store.remotely_read,
    },
    claims: {
        "claim_to_end": memory_store.claim_to_end,
        "claim_waiting": memory_store.claim_waiting,
        "release": memory_store.release,
        "claim_again": memory_store.claim_again,
        "owned_responses": memory_store.owned_responses,
        "cancel_requested": memory_store.cancel_requested,
        "count_waiting": memory_store.count_waiting,
        "request_cancel": memory_store.request_cancel,
        "fail_undecodable": memory_store.fail_undecodable,
    },
    log_append: {
        "append": memory_log.append,
        "fold_short": memory_log.fold_short,
        "next_seq": memory_log.next_seq,
        "is_logged": memory_log.is_logged,
        "delete_orphaned_log": memory_log.delete_orphaned_log,
    },
    log_read: {
        "read_logged": memory_log.read_log,
        "read_ended": memory_log.read_ended,
        "read_progress": memory_log.read_progress,
        "read_updates": memory_log.read_updates,
    },
    responses: {
        "insert": memory_store.insert,
        "committing_insert": memory_store.committing_insert,
        "get": memory_store.get,
        "finish_all": memory_store.finish_all,
        "get_owner": memory_store.get_owner,
        "set_weights": memory_store.set_weights,
    },
    ledger: {"record_usage": memory_store.record_usage, "is_metered": memory_store.is_metered},
    outbox: {"enqueue": lambda _at, _ended: None},
    stored_items: {
        "insert_items_of": memory_store.insert_items_of,
        "input_items": memory_store.input_items,
        "output_items": memory_store.output_items,
    },
    images: {name: getattr(memory_images, name) for name in ("insert_all", "load", "sizes")},
    deletion: {"delete": memory_store.delete, "remove_if_unneeded": memory_store.remove_if_unneeded},
    storage_usage: {"total": memory_store.stored_bytes},
    idempotency_keys: {
        "find": memory_store.find,
        "claim": memory_store.claim,
        "release_lost": memory_store.release_lost,
        "free": memory_store.free,
    },
    group_commit: {
        "is_responsive": lambda at: not at.is_cut,
        "append_and_commit": memory_log.append_and_commit,
        "set_timeouts": memory_store.set_timeouts,
        "commit_synchronously": memory_store.commit_synchronously,
    },
    commit_probe: {"fence": memory_log.fence_with_probes, "lost": memory_log.lost},
    lone_commit: {
        "commit_synchronously": memory_store.commit_synchronously,
        "database_clock": lambda at: at.now,
    },
    write_updates: {"commit_synchronously": memory_store.commit_synchronously},
}


@contextmanager
def installed() -> Iterator[None]:
    """The store's functions are these, for every caller in this process."""
    with ExitStack() as patches:
        for module, functions in PLACES.items():
            patches.enter_context(mock.patch.multiple(module, **functions))
        yield
