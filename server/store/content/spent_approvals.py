"""Approvals of calls that are spent, among the idempotency keys: each names the response that makes the call.

Its key is the approval request's id after a newline, which no header can have. It is kept as long as the
response that asked or the one that makes the call, and for `KEY_LIFETIME` at least.
"""

from uuid import UUID

from sqlalchemy import Connection, text

MARK = "\n"
_SPEND = text("""
    insert into idempotency_keys as k (tenant, key, digest, response_id)
    values (:tenant, :key, '', :response)
    on conflict (tenant, key) do update set response_id = k.response_id
    returning response_id
""")
_PASS_ON = text("""
    update idempotency_keys set response_id = :response where tenant = :tenant and key = :key
""")
_OWNER = text("select response_id from idempotency_keys where tenant = :tenant and key = :key")


def spend(connection: Connection, tenant: str, approval: str, response: UUID) -> UUID:
    """Spends an approval for a response, unless it is spent; returns the response that has it.

    Waits for a concurrent transaction that spends the same one.
    """
    use = {"tenant": tenant, "key": MARK + approval, "response": response}
    owner: UUID = connection.execute(_SPEND, use).scalar_one()
    return owner


def pass_on(connection: Connection, tenant: str, approval: str, response: UUID) -> None:
    """Gives a spent approval to another response."""
    connection.execute(_PASS_ON, {"tenant": tenant, "key": MARK + approval, "response": response})


def owner(connection: Connection, tenant: str, approval: str) -> UUID | None:
    """The response that an approval is spent for; None if it is not spent."""
    return connection.execute(_OWNER, {"tenant": tenant, "key": MARK + approval}).scalar()
