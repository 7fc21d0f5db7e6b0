import pytest

from server.caller import SCOPES, Caller
from server.errors import MissingScope


def test_without_keys_everything_is_allowed() -> None:
    caller = Caller("default", None)
    for scope in SCOPES:
        caller.require(scope)


def test_a_missing_scope_is_named() -> None:
    with pytest.raises(MissingScope, match=r"Missing scopes: admin\.") as refused:
        Caller("default", "k", scopes=frozenset({"read", "write"})).require("admin")
    assert (refused.value.status, refused.value.code) == (403, "insufficient_scope")


def test_a_restricted_key_uses_what_it_names() -> None:
    caller = Caller("a", "k", models=frozenset({"m"}), tools=frozenset({"files"}))
    assert caller.usable_models(["m", "n"]) == ["m"]
    assert caller.may_use_tool("x", "files")
    assert not caller.may_use_tool("x", None)
    assert Caller("a", "k").may_use_tool("x")


def test_rotated_keys_are_counted_as_the_first() -> None:
    assert Caller("a", None).counted_as == ""
    assert Caller("a", "k2").counted_as == "k2"
    assert Caller("a", "k2", first_key="k1").counted_as == "k1"
