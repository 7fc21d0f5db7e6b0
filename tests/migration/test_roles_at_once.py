"""Several processes make the database roles at once, as servers do that start together on a new database."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg

from server.store.database_roles import create_roles, roles_exist

PROCESSES = 6
ROUNDS = 3
FORGET = """
    do $$ declare p record; begin
        for p in select policyname, tablename from pg_policies where schemaname = 'public' loop
            execute format('drop policy %I on %I', p.policyname, p.tablename);
            execute format('alter table %I disable row level security', p.tablename);
        end loop;
    end $$
"""


def test_roles_may_be_made_by_several_processes_at_once(database_url: str) -> None:
    start = threading.Barrier(PROCESSES)

    def make() -> None:
        start.wait(60)
        create_roles(database_url)

    with ThreadPoolExecutor(PROCESSES) as pool:
        for _ in range(ROUNDS):
            for made in [pool.submit(make) for _ in range(PROCESSES)]:
                made.result()
            assert roles_exist(database_url)
            with psycopg.connect(database_url, autocommit=True) as owner:
                owner.execute(FORGET)
