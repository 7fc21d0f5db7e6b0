"""Every crash point that is declared is somewhere in the source, and the other way round."""

import ast

import pytest

from server.crashpoints import CRASHPOINTS, arm
from tests.support.documents import ROOT

FUNCTIONS = ("crashpoint", "is_last_pass")
"""Which are called with a point's name."""


def placed() -> set[object]:
    """The names that the source passes."""
    return {
        node.args[0].value if isinstance(node.args[0], ast.Constant) else ast.unparse(node)
        for path in (ROOT / "server").rglob("*.py")
        if path.stem != "crashpoints"
        if any(function in (source := path.read_text(encoding="utf-8")) for function in FUNCTIONS)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
    }


def test_every_declared_point_is_placed_and_every_placed_one_is_declared() -> None:
    assert placed() == CRASHPOINTS


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no crash point 'nowhere'.*accept\.begun"):
        arm("nowhere")
