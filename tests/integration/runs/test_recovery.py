import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from server.dialects.base import Dialect
from server.dialects.pick import pick
from server.locations import demo_model_folder
from server.runs.read import read_response
from server.runs.recorder import SERVER_ERROR
from server.runs.recovery import TOLD, end_orphans
from server.runs.run import Run
from server.store import deletion, events
from server.store.database import Database
from server.wire.events import event_type, is_terminal, render
from tests.integration.runs.recorded import Bench, finished, recording, tokens
from tests.support.builders import (
    BREAK_PARSER,
    HALF,
    LATER,
    TENANT,
    SpelledDialect,
    accept,
    examples,
    kill,
    make_echo,
    make_facts,
    register,
    say,
    think,
)

DEMO = demo_model_folder()
STOP, OPEN, CLOSE = 1273, 1274, 1275
real = pick(DEMO, frozenset({STOP}))
tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def ids(text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def leave(database: Database, run: Run, given: list[list[int]]) -> list[bytes]:
    """What a replica writes of these tokens before it dies, as its recorder does; all events so far."""
    untold: list[int] = []
    for step in given:
        untold += step
        made = run.tokens(step, LATER)
        if made:
            with database.begin() as connection:
                events.append(connection, events.pack(TENANT, run.facts.id, 1, made, untold))
            untold = []
    with database.begin() as connection:
        stored = events.read(connection, TENANT, run.facts.id, 0)
    return [render(run.facts.id, event) for event in stored]


def check(bench: Bench, run: Run, before: list[bytes]) -> dict[str, object]:
    """The response has failed with what there was, numbered on from there; gives it."""
    final = bench.hub.final(run.facts.id)
    assert bench.recorder.wait_idle(10)
    stored = bench.stored(run.facts.id)
    assert [render(run.facts.id, event) for event in stored][: len(before)] == before
    assert [event.sequence_number for event in stored] == list(range(len(stored)))
    assert [is_terminal(event) for event in stored] == [False] * (len(stored) - 1) + [True]
    assert event_type(stored[-1]) == "response.failed"
    told: dict[str, object] = msgspec.json.decode(final)
    assert told["error"] == {"code": SERVER_ERROR, "message": TOLD}
    with bench.database.begin() as connection:
        read = read_response(connection, TENANT, run.facts.id)
    assert read is not None
    assert msgspec.json.encode(read) == final
    texts = [item["content"][0]["text"] for item in told["output"]]  # type: ignore[attr-defined]
    assert "".join(event.body for event in stored if event.kind) == "".join(texts)
    with bench.database.begin() as connection:
        metered = connection.exec_driver_sql(
            "select count(*) from usage_ledger where response_id = %s", (run.facts.id,)
        )
        assert metered.scalar_one() == 1
    assert bench.counts()["response_events_hot"] == 0
    return told


def orphan(bench: Bench, dialect: Dialect, *, opens_reasoning: bool = False) -> Run:
    """A response that has begun at a replica of its own."""
    dead = register(bench.database)
    begun = accept(bench.database, dead)
    facts = make_facts(id=begun.facts.id, created_at=begun.facts.created_at, echo=make_echo())
    run = Run(facts, dialect.parser(opens_reasoning=opens_reasoning))
    run.begin()
    kill(bench.database, dead)
    return run


SPELLED = [*think("wh"), HALF, *think("y"), *say("be"), HALF, *say("cause"), HALF]


def test_a_response_left_at_any_token_ends_as_failed_with_what_it_had(database_url: str) -> None:
    with recording(database_url) as bench:
        for cut in range(len(SPELLED) + 1):
            run = orphan(bench, SpelledDialect())
            before = leave(bench.database, run, [[token] for token in SPELLED[:cut]])
            assert end_orphans(bench.database, bench.replica, SpelledDialect(), bench.recorder) == 1
            check(bench, run, before)
            assert end_orphans(bench.database, bench.replica, SpelledDialect(), bench.recorder) == 0


THOUGHT = [*ids("Let me think… 😀"), CLOSE, *ids("\n\nIt is é😀!")]


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_is_repaired_whoever_opened_it(database_url: str, opened: bool) -> None:
    given = THOUGHT if opened else [OPEN, *THOUGHT]
    with recording(database_url) as bench:
        for cut in range(len(given) + 1):
            run = orphan(bench, real, opens_reasoning=opened)
            before = leave(bench.database, run, [[token] for token in given[:cut]])
            end_orphans(bench.database, bench.replica, real, bench.recorder)
            told = check(bench, run, before)
            assert "<think>" not in str(told)
            assert "</think>" not in str(told)


@given(
    st.lists(
        st.lists(st.integers(0, 1270) | st.sampled_from([OPEN, CLOSE, *ids("😀")]), min_size=1, max_size=4),
        max_size=8,
    ),
    st.booleans(),
)
@example(given_tokens=[[CLOSE, *ids("because")]], opened=True)
@examples(25)
def test_any_tokens_in_any_steps_are_repaired(
    database_url: str, given_tokens: list[list[int]], opened: bool
) -> None:
    with recording(database_url) as bench:
        run = orphan(bench, real, opens_reasoning=opened)
        before = leave(bench.database, run, given_tokens)
        end_orphans(bench.database, bench.replica, real, bench.recorder)
        check(bench, run, before)


def test_an_orphan_whose_tokens_cannot_be_read_again_ends_with_what_it_told(database_url: str) -> None:
    with recording(database_url) as bench:
        others_words, unreadable = orphan(bench, SpelledDialect()), orphan(bench, SpelledDialect())
        told = [*think("wh"), *say("be")]
        before = [
            leave(bench.database, others_words, [told]),
            leave(bench.database, unreadable, [told]),
        ]
        with bench.database.begin() as connection:
            for run, token in ((others_words, ord("x")), (unreadable, BREAK_PARSER)):
                connection.exec_driver_sql(
                    "update response_events_hot set token_ids = %s where response_id = %s and first_seq = 2",
                    (token.to_bytes(4, "little"), run.facts.id),
                )
        assert end_orphans(bench.database, bench.replica, SpelledDialect(), bench.recorder) == 2
        for run, seen in zip((others_words, unreadable), before, strict=True):
            output = check(bench, run, seen)["output"]
            assert isinstance(output, list)
            assert [item["content"][0]["text"] for item in output] == ["wh", "be"]


def test_the_responses_of_living_replicas_are_left_alone(database_url: str) -> None:
    with recording(database_url) as bench:
        run = bench.begin()
        bench.feed(tokens(run, say("mine")))
        accept(bench.database, register(bench.database))
        assert end_orphans(bench.database, bench.replica, SpelledDialect(), bench.recorder) == 0
        bench.feed(finished(run))
        assert event_type(bench.stored(run.facts.id)[-1]) == "response.completed"


def test_a_deleted_orphan_leaves_nothing(database_url: str) -> None:
    with recording(database_url) as bench:
        run = orphan(bench, SpelledDialect())
        leave(bench.database, run, [list(say("secret"))])
        with bench.database.begin() as connection:
            assert deletion.delete(connection, TENANT, run.facts.id) is True
        end_orphans(bench.database, bench.replica, SpelledDialect(), bench.recorder)
        bench.hub.final(run.facts.id)
        assert {name for name, count in bench.counts().items() if count} == {"usage_ledger"}


def test_two_replicas_end_each_orphan_once(database_url: str) -> None:
    with recording(database_url) as first, recording(database_url) as second:
        runs = [orphan(first, SpelledDialect()) for _ in range(6)]
        ended = [
            end_orphans(bench.database, bench.replica, SpelledDialect(), bench.recorder)
            for bench in (first, second, first)
        ]
        assert ended == [6, 0, 0]
        for run in runs:
            first.hub.final(run.facts.id)
        assert first.counts()["usage_ledger"] == 6
