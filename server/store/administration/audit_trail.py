"""The audit trail: what operators, callers and the server itself changed. Rows are only added.

An entry is written in the transaction of what it describes, so that there is none without the other. It
names ids and counts, never the content of a request or an answer, nor a key's text. An erasure takes names
out of entries (`erasure/tenant_rows.py`).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import Connection, select, text

from server.protocol.list_pages import PageRequest
from server.store.keyset_page import rows_after
from server.store.tables import audit_trail

log = logging.getLogger("holdfast.audit")
ACTIONS = {
    "key.create": "a key was made",
    "key.update": "a key's scopes, limits or expiry were changed",
    "key.rotate": "a key was replaced by a new one",
    "key.revoke": "a key was revoked",
    "key.first_use": "a key was used for the first time",
    "tenant.create": "settings of a tenant were made",
    "tenant.update": "settings of a tenant were changed",
    "tenant.delete": "settings of a tenant were removed",
    "tenant.erase": "everything of a tenant was removed; the entry does not say which tenant",
    "user.erase": "everything of an end user was removed; the entry does not say which user",
    "tenant.export": "an export wrote what a tenant, or an end user, has",
    "tenant.import": "an import added responses and conversations to a tenant",
    "price.set": "a model's price was set",
    "webhook.create": "a webhook endpoint was made",
    "webhook.update": "a webhook endpoint was changed, enabled or disabled",
    "webhook.rotate": "a webhook endpoint got a new secret",
    "webhook.delete": "a webhook endpoint was deleted",
    "webhook.redeliver": "webhooks are delivered again",
    "webhook.disable": "the server disabled a webhook endpoint that answered 410 Gone",
    "response.delete": "a caller, or somebody in the console, deleted a response",
    "process.drain": "somebody in the console asked a process to stop, as SIGTERM does",
    "response.cancel": "somebody in the console asked to cancel a response",
    "response.run_again": "somebody in the console ran a response again, as a new one of its tenant",
    "approval.answer": "an operator approved or denied a call of an MCP tool, for its tenant",
    "console.save_view": "somebody saved a filter of the history or an SQL query in the console",
    "console.delete_view": "somebody deleted a saved filter or query in the console",
    "console.sql": "somebody ran a query on the console's SQL page, whose first 2,000 characters are kept",
    "conversation.delete": "a caller deleted a conversation",
    "conversation.delete_item": "a caller took an item out of a conversation",
    "prompt.put": "a version of a prompt was stored",
    "prompt.delete": "a prompt, or a version of it, was deleted",
    "purge.retention": "the server purged what had expired",
    "purge.command": "`holdfast purge` purged",
    "database.restore": "`holdfast restore FILE` made the database from a backup",
    "database.hold": "what is unfinished in a copy of the database is held",
    "database.adopt": "what was held in a copy of the database goes on, or is cancelled",
    "process.start": "a server process started, with these settings; secrets and defaults are left out",
    "process.stop": "a server process ended as asked",
}


@dataclass(frozen=True, slots=True)
class Entry:
    id: UUID
    at: datetime
    actor: str
    """`key:ID` or `token:SUBJECT`, `user:NAME` of a command, `server:ID` of a replica, or `anonymous`."""
    action: str
    tenant: str | None
    target: str | None
    request_id: str | None
    details: dict[str, object]


_INSERT = text(
    "insert into audit_trail (actor, action, tenant, target, request_id, details)"
    " values (:actor, :action, :tenant, :target, :request_id, cast(:details as jsonb))"
)


def record(
    connection: Connection,
    actor: str,
    action: str,
    tenant: str | None = None,
    target: str | None = None,
    details: Mapping[str, object] | None = None,
    request_id: str | None = None,
) -> None:
    """Adds an entry in the caller's transaction, and a log line, which a failed transaction has, too.

    `action` is one of ACTIONS, `target` the id of what was changed; `details` must be JSON.
    """
    row = {"actor": actor, "action": action, "tenant": tenant, "target": target, "request_id": request_id}
    connection.execute(_INSERT, {**row, "details": msgspec.json.encode(details or {}).decode()})
    log.info("%s by %s: %s", action, actor, target or "-", extra={"tenant": tenant, "request_id": request_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFilter:
    """Conditions on the listed entries; None is any."""

    actor: str | None = None
    action: str | None = None
    """The beginning of the action's name."""
    tenant: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    """The time before which the entries were made."""


def entries_page(connection: Connection, chosen: EntryFilter, asked: PageRequest) -> list[Entry]:
    """The entries after one, by age, one more than the limit. Raises InvalidRequest for an unknown entry."""
    columns = audit_trail.c
    query = every = select(*(columns[name] for name in Entry.__dataclass_fields__))
    for name in ("actor", "tenant", "target"):
        if (value := getattr(chosen, name)) is not None:
            query = query.where(columns[name] == value)
    if chosen.action is not None:
        query = query.where(columns.action.startswith(chosen.action, autoescape=True))
    if chosen.since is not None:
        query = query.where(columns.at >= chosen.since)
    if chosen.until is not None:
        query = query.where(columns.at < chosen.until)
    order, kind = (columns.at, columns.id), "an entry"
    rows = rows_after(connection, query, order, asked, among=every, kind=kind)
    return [Entry(**{**row._mapping, "details": msgspec.json.decode(row.details)}) for row in rows]
