"""The data dictionary: every column has a comment, in the database as on the page."""

import psycopg

from tests.support.data_dictionary import table_comments, view_comments

IN_DATABASE = """
    select c.relname, a.attname, col_description(c.oid, a.attnum)
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    where c.relnamespace = %s::regnamespace and c.relkind = any(%s) and not c.relispartition and a.attnum > 0
      and not a.attisdropped and c.relname <> 'alembic_version'
    order by c.relname, a.attnum
"""
ABOUT_TABLES = """
    select relname, obj_description(oid, 'pg_class') from pg_class
    where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and not relispartition
      and relname <> 'alembic_version'
"""
ABOUT_OBJECTS = """
    select 'admin.' || relname, obj_description(oid, 'pg_class') from pg_class
    where relnamespace = 'admin'::regnamespace and relkind = 'v'
    union all
    select replace(oid::regprocedure::text, ',', ', '), obj_description(oid, 'pg_proc') from pg_proc
    where pronamespace = 'admin'::regnamespace
"""


def test_every_column_of_every_table_has_a_comment_as_the_page_says(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        columns = connection.execute(IN_DATABASE, ["public", ["r", "p"]]).fetchall()
        tables = connection.execute(ABOUT_TABLES).fetchall()
    found = {f"{table}.{column}": comment for table, column, comment in columns} | dict(tables)
    assert found == table_comments()


def test_every_view_and_its_columns_have_comments_as_the_page_says(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        columns = connection.execute(IN_DATABASE, ["admin", ["v"]]).fetchall()
        objects = connection.execute(ABOUT_OBJECTS).fetchall()
    found = {f"admin.{view}.{column}": comment for view, column, comment in columns} | dict(objects)
    assert found == view_comments()
    on_page = [name for name in view_comments() if name.count(".") == 2]
    for view in {view for view, _, _ in columns}:
        here = [f"admin.{name}.{column}" for name, column, _ in columns if name == view]
        assert [name for name in on_page if name.startswith(f"admin.{view}.")] == here
