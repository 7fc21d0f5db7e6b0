"""What is sealed is opened by its keys, for its tenant and purpose, and by nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol.responses.items import (
    Compaction,
    InputText,
    Item,
    Message,
    Reasoning,
    ReasoningText,
    SummaryText,
    plain_text,
)
from server.sealing.cipher import KEY_BYTES, Seal, make_key
from server.sealing.sealed_items import SUMMARY_PREFIX, UNREADABLE, unseal_items
from tests.support.builders import TENANT, examples

OLD, NEW = b"o" * KEY_BYTES, b"n" * KEY_BYTES
SEAL = Seal([OLD])


@examples(50)
@given(st.text(), st.text(max_size=20), st.text(max_size=20))
def test_what_is_sealed_is_opened_unchanged(text: str, tenant: str, place: str) -> None:
    assert SEAL.open("reasoning", tenant, SEAL.seal("reasoning", tenant, place, text)) == text


def test_sealing_is_repeatable_and_tells_places_apart() -> None:
    assert SEAL.seal("reasoning", TENANT, "rs_1", "x") == Seal([OLD]).seal("reasoning", TENANT, "rs_1", "x")
    assert SEAL.seal("reasoning", TENANT, "rs_1", "x") != SEAL.seal("reasoning", TENANT, "rs_2", "x")


def test_seal_says_its_version_and_nothing_of_the_text() -> None:
    sealed = SEAL.seal("reasoning", TENANT, "rs_1", "the secret")
    assert sealed.startswith("hf1.")
    assert sealed.isascii()
    assert "secret" not in sealed


def test_another_tenant_purpose_or_key_opens_nothing() -> None:
    sealed = SEAL.seal("reasoning", TENANT, "rs_1", "x")
    assert SEAL.open("reasoning", "globex", sealed) is None
    assert SEAL.open("compaction", TENANT, sealed) is None
    assert Seal([NEW]).open("reasoning", TENANT, sealed) is None
    assert Seal.of_this_process().open("reasoning", TENANT, sealed) is None


def test_older_keys_open_and_the_first_seals() -> None:
    before = SEAL.seal("reasoning", TENANT, "rs_1", "x")
    after = Seal([NEW, OLD])
    assert after.open("reasoning", TENANT, before) == "x"
    assert SEAL.open("reasoning", TENANT, after.seal("reasoning", TENANT, "rs_1", "x")) is None


SEALED = SEAL.seal("reasoning", TENANT, "rs_1", "some text that is long enough")
FOREIGN = ["", "gAAAAABl", "hf1", "hf1..", "hf2" + SEALED[3:], SEALED[:-8], SEALED + "!", "hf1." + "ä" * 9]


@pytest.mark.parametrize("foreign", FOREIGN)
def test_what_is_not_ours_is_not_opened(foreign: str) -> None:
    assert SEAL.open("reasoning", TENANT, foreign) is None


@examples(100)
@given(st.integers(min_value=0, max_value=len(SEALED) - 1), st.characters(codec="ascii"))
def test_what_was_changed_is_never_opened_as_another_text(place: int, character: str) -> None:
    changed = SEALED[:place] + character + SEALED[place + 1 :]
    told = SEAL.open("reasoning", TENANT, changed)
    assert told is None or told == "some text that is long enough"


def test_keys_are_of_the_promised_length() -> None:
    assert len(make_key()) == KEY_BYTES
    assert make_key() != make_key()


def test_sealed_reasoning_is_opened_unless_it_has_content() -> None:
    sealed = SEAL.seal("reasoning", TENANT, "rs_1", "the thought")
    bare = Reasoning("rs_9", "completed", [SummaryText("s")], encrypted_content=sealed)
    full = Reasoning("rs_9", "completed", [], [ReasoningText("as given")], sealed)
    told = unseal_items([bare, full], SEAL, TENANT)
    assert [item.content for item in told if isinstance(item, Reasoning)] == [
        [ReasoningText("the thought")],
        [ReasoningText("as given")],
    ]


def test_foreign_reasoning_stays_as_it_is() -> None:
    item = Reasoning("rs_9", "completed", [], encrypted_content="gAAAAABl")
    assert unseal_items([item], SEAL, TENANT) == [item]


def compaction(text: str) -> list[Item]:
    return [Compaction("cmp_1", "completed", SEAL.seal("compaction", TENANT, "cmp_1", text))]


def test_compaction_is_told_by_the_developer() -> None:
    assert unseal_items(compaction("They met."), SEAL, TENANT) == [
        Message("cmp_1", "completed", "developer", [InputText(SUMMARY_PREFIX + "They met.")])
    ]
    assert unseal_items(compaction(""), SEAL, TENANT) == []


def test_another_tenant_s_compaction_is_said_to_be_unreadable() -> None:
    (told,) = unseal_items(compaction("They met."), SEAL, "globex")
    assert isinstance(told, Message)
    assert plain_text(told.content) == UNREADABLE


def test_a_tag_is_of_all_its_parts_and_of_a_key_that_the_server_has_or_had() -> None:
    old, new = b"o" * 32, b"n" * 32
    tag = Seal([old]).tag("approval", "alice", "ab", "c")
    assert Seal([new, old]).is_tag(tag, "approval", "alice", "ab", "c")
    assert not Seal([new]).is_tag(tag, "approval", "alice", "ab", "c")
    for parts in (("alice", "a", "bc"), ("bob", "ab", "c"), ("alice", "ab", "c", "")):
        assert not Seal([old]).is_tag(tag, "approval", *parts)
    assert not Seal([old]).is_tag(tag, "session", "alice", "ab", "c")
    assert not Seal([old]).is_tag("é" + tag, "approval", "alice", "ab", "c")
