"""What operators are told of a URL that leads to a pooler."""

import pytest

from server.store.session_check import SessionProbe, complaint, refusal

OPTIONS = 'connection failed: connection to server at "db", port 6432 failed: FATAL:  '
SERVER = ("holdfast", "1")


@pytest.mark.parametrize(
    "said",
    [
        "unsupported startup parameter: options",
        "unsupported startup parameter in options: tcp_keepalives_idle",
        "Feature not supported: RDS Proxy currently doesn't support command-line options.",
    ],
)
def test_a_pooler_that_refuses_settings_is_recognised_and_the_setting_named(said: str) -> None:
    sentence = refusal("database-url", OPTIONS + said, pooled=False)
    assert sentence is not None
    assert said in sentence
    assert "HOLDFAST_DATABASE_POOLER=transaction" in sentence
    direct = refusal("database-direct-url", OPTIONS + said, pooled=False)
    assert direct is not None
    assert "not to Postgres itself" in direct
    own = refusal("database-url", OPTIONS + said, pooled=True)
    assert own is not None
    assert "remove it from the URL" in own


def test_a_pooler_of_statements_is_refused() -> None:
    said = "transaction blocks not allowed in statement pooling mode"
    assert "set its mode to transaction" in str(refusal("database-url", said, pooled=True))


def test_other_errors_are_none_of_a_pooler() -> None:
    assert refusal("database-url", OPTIONS + 'role "me" does not exist', pooled=False) is None


def test_settings_that_are_dropped_are_a_complaint() -> None:
    kept = SessionProbe(keeps_settings=True, is_own_backend=False, server=SERVER)
    dropped = SessionProbe(keeps_settings=False, is_own_backend=False, server=SERVER)
    assert complaint("database-url", kept) is None
    assert "HOLDFAST_DATABASE_POOLER=transaction" in str(complaint("database-url", dropped))
    assert "not to Postgres itself" in str(complaint("database-direct-url", dropped))
