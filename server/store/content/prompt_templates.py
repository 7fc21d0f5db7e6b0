"""Prompt templates: numbered versions of a template, by tenant and id. JSON is passed as text."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    tenant: str
    id: str
    version: int
    content: str
    created_at: datetime


_PUT_NEXT = text("""
    insert into prompts (tenant, id, version, content)
    select :tenant, :id, coalesce(max(version), 0) + 1, cast(:content as json)
    from prompts where tenant = :tenant and id = :id
    on conflict do nothing returning version
""")
_PUT = text("""
    insert into prompts (tenant, id, version, content)
    values (:tenant, :id, :version, cast(:content as json))
    on conflict (tenant, id, version) do update
        set content = excluded.content, created_at = clock_timestamp()
    returning version
""")
_COLUMNS = "tenant, id, version, content::text, created_at"
_GET = text(f"""
    select {_COLUMNS} from prompts
    where tenant = :tenant and id = :id and (cast(:version as integer) is null or version = :version)
    order by version desc limit 1
""")
_LIST = text(f"""
    select {_COLUMNS} from prompts where cast(:tenant as text) is null or tenant = :tenant
    order by tenant, id, version
""")
_DELETE = text("""
    delete from prompts
    where tenant = :tenant and id = :id and (cast(:version as integer) is null or version = :version)
""")


def put(connection: Connection, tenant: str, prompt: str, content: str, version: int | None) -> int | None:
    """Creates or replaces a version, or creates the next one; its number, None if somebody else has."""
    parameters = {"tenant": tenant, "id": prompt, "content": content, "version": version}
    stored: int | None = connection.execute(_PUT_NEXT if version is None else _PUT, parameters).scalar()
    return stored


def get(connection: Connection, tenant: str, prompt: str, version: int | None) -> StoredPrompt | None:
    """The version of a template, or its highest one; None if there is none."""
    row = connection.execute(_GET, {"tenant": tenant, "id": prompt, "version": version}).first()
    return StoredPrompt(*row) if row else None


def list_all(connection: Connection, tenant: str | None) -> list[StoredPrompt]:
    """Every version of every template, or of one tenant's."""
    return [StoredPrompt(*row) for row in connection.execute(_LIST, {"tenant": tenant})]


def delete(connection: Connection, tenant: str, prompt: str, version: int | None) -> int:
    """Deletes that version, or all; returns how many."""
    return connection.execute(_DELETE, {"tenant": tenant, "id": prompt, "version": version}).rowcount
