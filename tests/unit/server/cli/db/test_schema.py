"""`holdfast db status` and `db downgrade`: what is said and refused follows from what was read."""

import pytest

from server.cli.db.schema import describe, refusal
from server.store.schema.schema_status import LivingReplica, OpenTransaction, SchemaReport, compare, needing
from server.store.schema.upgrade import Migration

FIRST = Migration("0016", "0015", "pre", "A table more", lost=())
LAST = Migration("0017", "0016", "post", "A column less", lost=("responses.words",))
OLD = LivingReplica("a", "h", 1, "0.1.0", "0015", 0.2)
NEW = LivingReplica("b", "there", 2, "0.3.0", "0017", 0.2)


def test_a_newer_revision_can_be_served_on_if_all_of_it_says_so() -> None:
    def seen(recorded: dict[str, str] | None) -> str:
        return compare("0018", ["0001", "0016"], "0016", recorded)

    assert seen({"0016": "0001", "0017": "0016", "0018": "0016"}) == "newer"
    assert seen({"0016": "0001", "0017": "0017", "0018": "0016"}) == "unknown"
    assert seen({"0016": "0001"}) == "unknown"
    assert seen(None) == "unknown"


@pytest.mark.parametrize(
    ("found", "state"), [("0016", "current"), ("0001", "behind"), (None, "behind"), ("9", "unknown")]
)
def test_a_known_revision_is_compared_with_the_release(found: str | None, state: str) -> None:
    assert compare(found, ["0001", "0016"], "0016", {}) == state


def test_a_downgrade_wants_a_yes_and_the_revision_where_it_loses_something() -> None:
    assert refusal(FIRST, None, [], []) == (
        "This undoes 0016 (A table more); go ahead with: holdfast db downgrade --yes"
    )
    assert refusal(FIRST, "", [], []) is None
    assert refusal(LAST, "", [], []) is None
    for yes in (None, ""):
        assert refusal(LAST, yes, [], ["responses.words"]) == (
            "Undoing 0017 (A column less) deletes the contents of responses.words; if they may go: "
            "holdfast db downgrade --yes 0017"
        )
    assert refusal(LAST, "0017", [], ["responses.words"]) is None
    assert refusal(LAST, "0016", [], []) == "The last migration is 0017 (A column less), not 0016."


def test_replicas_that_need_a_migration_keep_it() -> None:
    refused = refusal(LAST, "0017", [NEW], [])
    assert refused == (
        "Replicas of a release that needs 0017 (A column less) are serving: b on there; stop them first."
    )
    assert needing([OLD, NEW], LAST) == [NEW]
    assert needing([OLD, NEW], FIRST) == [NEW]


def test_the_status_has_a_line_for_each_thing() -> None:
    report = SchemaReport(
        replicas=[OLD, NEW],
        invalid_indexes=["ix_responses_words"],
        transactions=[
            OpenTransaction(7, "pg_dump of postgres", "active", 61.2),
            OpenTransaction(None, "two-phase", "prepared", 5.0),
            OpenTransaction(8, "someone", "unknown", None),
        ],
    )
    assert list(describe("0016", "behind", [FIRST, LAST], report)) == [
        "database\t0016\tbehind this release; run: holdfast db upgrade",
        "release\t0017\tholdfast 0.1.0",
        "pending\t0017\tpost: A column less",
        "replica\ta\tholdfast 0.1.0, needs 0015, process 1 of h, beat 0.2 s ago",
        "replica\tb\tholdfast 0.3.0, needs 0017, process 2 of there, beat 0.2 s ago",
        "invalid index\tix_responses_words\tleft by an interrupted build; the next upgrade builds it again",
        "transaction\t7\tpg_dump of postgres (active, open for 61 s): migrations of its tables wait for it",
        "transaction\tprepared\ttwo-phase (prepared, open for 5 s): migrations of its tables wait for it",
        "transaction\t8\tsomeone (unknown): migrations of its tables wait for it",
    ]


def test_all_migrations_of_an_empty_database_are_pending() -> None:
    nothing = SchemaReport(replicas=[], invalid_indexes=[], transactions=[])
    lines = list(describe(None, "behind", [FIRST, LAST], nothing))
    assert lines[0] == "database\tempty\tbehind this release; run: holdfast db upgrade"
    assert [line.split("\t")[1] for line in lines[2:]] == ["0016", "0017"]
