"""Idempotency keys in the database: how long they are known."""

from server.store.content import idempotency_keys
from server.store.database import Database


def test_idempotency_keys_are_forgotten_after_a_day(database: Database) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(
            "insert into idempotency_keys (tenant, key, digest, response_id, created_at)"
            " select 'acme', age::text, '', gen_random_uuid(), now() - make_interval(hours => age)"
            " from unnest(array[1, 23, 25, 90]) as age"
        )
        assert idempotency_keys.count_old_keys(connection) == 2
        assert idempotency_keys.delete_old_keys(connection) == 2
        left = connection.exec_driver_sql("select key from idempotency_keys order by key").scalars().all()
        assert left == ["1", "23"]
        assert idempotency_keys.delete_old_keys(connection) == 0
