import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from server.store.database_errors import DatabaseError
from server.store.session_check import complaints, probe_durability


@pytest.mark.parametrize("pooled", [False, True])
def test_the_settings_are_those_of_a_session_of_that_url(database_url: str, pooled: bool) -> None:
    url = make_conninfo(database_url, options="-c synchronous_commit=local")
    settings = probe_durability(url, pooled=pooled)
    assert (settings.fsync, settings.synchronous_commit, settings.in_recovery) == ("off", "local", False)
    assert len(list(complaints(settings))) == 2


def test_hosts_of_a_url_are_counted(database_url: str) -> None:
    host = str(conninfo_to_dict(database_url)["host"])
    both = make_conninfo(database_url, host=f"{host},{host}", target_session_attrs="read-write")
    assert [probe_durability(url, pooled=False).hosts for url in (database_url, both)] == [1, 2]


def test_a_database_that_does_not_answer_is_a_database_error() -> None:
    with pytest.raises(DatabaseError):
        probe_durability("postgresql://nobody@127.0.0.1:1/nothing", pooled=False)
