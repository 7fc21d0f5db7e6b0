import pytest
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from server.configuration.settings import Config
from server.errors import ConfigError
from server.process import open_database
from server.process.open_database import OpenDatabase
from server.store import session_check


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("alter table", {}, Exception("canceling statement due to lock timeout")),
        ProgrammingError("create table", {}, Exception("permission denied for schema public")),
    ],
)
def test_upgrade_that_fails_is_told_in_a_sentence_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, error: DBAPIError
) -> None:
    def fail(_url: str, _seconds: float) -> None:
        raise error

    monkeypatch.setattr(open_database, "schema_state", lambda _url: "behind")
    monkeypatch.setattr(session_check, "require_session", lambda *_: None)
    monkeypatch.setattr(open_database, "upgrade", fail)
    opened = OpenDatabase(Config(database_url="postgresql://nowhere/x"), print)
    with pytest.raises(ConfigError) as caught:
        opened.upgrade()
    assert str(error.orig) in str(caught.value)
    assert "alter table" not in str(caught.value)
