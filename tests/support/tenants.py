"""Keys of several tenants, made where a test's server finds them."""

import psycopg

from server.administration.key_changes import make_key


def make_tenant_key(database_url: str, tenant: str, *, priority_floor: int = 0) -> str:
    """A new key of that tenant."""
    key = make_key()
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "insert into api_keys (tenant, id, name, digest, priority_floor) values (%s, %s, '', %s, %s)",
            [tenant, key.id, key.digest, priority_floor],
        )
    return key.text


def sent(key: str | None) -> dict[str, str]:
    """The headers that a key is sent in."""
    return {"Authorization": f"Bearer {key}"} if key is not None else {}
