"""`Subject`: whose data is erased; the SQL conditions by which rows are a user's."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from server.protocol.ids import conversation_id, response_id

OF_USER: Final = "r.end_user = :user"
"""Whether the response `r` is the user's."""
BROUGHT_BY_USER: Final = f"""
    (i.response_id is not null and (
        exists (select from usage_ledger l
            where l.tenant = i.tenant and l.response_id = i.response_id and l.end_user = :user)
        or exists (select from responses r
            where r.tenant = i.tenant and r.id = i.response_id and {OF_USER})))
"""
"""Whether a response of the user brought the item `i` of a conversation. The ledger also knows responses that
are gone."""
ANONYMOUS: Final = "substr(l.response_id::text, 15, 1) = '8'"
"""Whether the ledger's line `l` has been made anonymous, which leaves a UUID of version 8."""
MAKE_ANONYMOUS: Final = """
    end_user = null, request_id = null, metadata = null,
    response_id = (substr(l.response_id::text, 1, 14) || '8' || substr(gen_random_uuid()::text, 16))::uuid
"""
"""SQL that makes a line of the ledger anonymous: its id becomes a random one of the same millisecond."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The owner of erased data: a whole tenant, or one of its end users."""

    tenant: str
    user: str | None = None
    keep_usage: bool = False
    """Whether a tenant's lines in the ledger stay, anonymous. A user's do: they are the tenant's bill."""

    @property
    def parameters(self) -> dict[str, str | None]:
        return {"tenant": self.tenant, "user": self.user}


def public_names(ids: list[UUID]) -> list[str]:
    """The names by which the audit trail may have responses or conversations with these ids."""
    return [name for id_ in ids for name in (response_id(id_), conversation_id(id_), f"chatcmpl-{id_.hex}")]
