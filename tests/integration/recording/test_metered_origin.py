from tests.integration.recording.claiming import taking
from tests.integration.recording.recorded import finished
from tests.support.builders import say


def test_a_response_is_metered_as_what_it_was_accepted_as_whoever_ends_it(database_url: str) -> None:
    with taking(database_url) as at:
        goes_on = at.leave([list(say("a"))], background=True)
        given_up = at.leave([list(say("b"))])
        unreadable = at.leave([list(say("c"))], background=True)
        with at.bench.database.begin() as connection:
            connection.exec_driver_sql("update responses set end_user = 'ana', kind = 'chat'")
            broken = "update responses set request = '[]' where id = %(id)s"
            connection.exec_driver_sql(broken, {"id": unreadable.facts.id})
        at.claimer.claim_all()
        at.bench.feed(finished(goes_on))
        for run in (goes_on, given_up):
            at.bench.hub.final(run.facts.id)
        with at.bench.database.begin() as connection:
            ledger = "select response_id, end_user, kind, background, attempt from usage_ledger"
            found = {row[0]: tuple(row[1:]) for row in connection.exec_driver_sql(ledger)}
    assert found == {
        goes_on.facts.id: ("ana", "chat", True, 2),
        given_up.facts.id: ("ana", "chat", False, 2),
        unreadable.facts.id: ("ana", "chat", True, 2),
    }
