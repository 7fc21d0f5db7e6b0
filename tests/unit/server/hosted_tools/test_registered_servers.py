"""The operator's settings about MCP servers, and what those are sent."""

import pytest

from server.errors import ConfigError
from server.hosted_tools.registered_servers import RegisteredServers, read_access, read_servers, read_tokens
from server.sealing.cipher import Seal

PLACES = read_servers("city=http://city/mcp,files=stdio:serve")


def test_by_default_a_url_is_everybodys_and_a_process_the_first_tenants() -> None:
    registered = RegisteredServers(PLACES)
    assert registered.labels_for("alice", "k1") == {"city"}
    assert registered.labels_for("default", None) == {"city", "files"}


def test_a_label_is_for_the_tenants_and_keys_that_are_named() -> None:
    registered = RegisteredServers(PLACES, read_access("city=alice|key:k2,files=*", registered_labels()))
    assert registered.labels_for("alice", "k1") == {"city", "files"}
    assert registered.labels_for("bob", "k2") == {"city", "files"}
    assert registered.labels_for("bob", "k1") == {"files"}


def registered_labels() -> frozenset[str]:
    return frozenset(PLACES)


@pytest.mark.parametrize("text", ["city", "city=", "city=|", "city=a,city=b", "town=alice"])
def test_access_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_access(text, registered_labels())


@pytest.mark.parametrize("text", ["secret", "city=", "city=two words"])
def test_a_wrong_token_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_tokens(text)
    assert "secret" not in str(refused.value)


def test_replicas_with_the_same_keys_give_the_same_session_names_and_others_do_not() -> None:
    def name(seal: Seal, tenant: str, word: str) -> str:
        sent = RegisteredServers(PLACES, seal=seal).headers(
            "city", {"X-SESSION-ID": word}, tenant, "response"
        )
        return sent["x-session-id"]

    one, same, other = Seal([b"k" * 32]), Seal([b"k" * 32]), Seal([b"o" * 32])
    assert name(one, "alice", "word") == name(same, "alice", "word")
    different = {name(one, "alice", "word"), name(other, "alice", "word"), name(one, "bob", "word")}
    assert len(different) == 3
    assert name(one, "a", "bc") != name(one, "ab", "c")


def test_only_what_names_a_session_is_taken_out_of_the_callers_headers() -> None:
    given = {"Authorization": "Bearer x", "x-Session-ID": "mine", "X-Holdfast-Token": "forged"}
    sent = RegisteredServers(PLACES, tokens={"city": "secret"}).headers("city", given, "alice", None)
    assert sent == {"Authorization": "Bearer x", "x-holdfast-token": "secret"}
