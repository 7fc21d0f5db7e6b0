import pytest

from server.caller import SCOPES_WITHOUT_KEYS, Caller
from server.errors import MissingScope


def test_without_keys_everything_is_allowed_but_administration() -> None:
    caller = Caller("default", None)
    assert caller.scopes == SCOPES_WITHOUT_KEYS
    for scope in SCOPES_WITHOUT_KEYS:
        caller.require(scope)
    with pytest.raises(MissingScope, match=r"Missing scopes: admin\.") as refused:
        caller.require("admin")
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
