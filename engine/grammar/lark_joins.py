"""How many terminals of a Lark grammar are joined by `&`, references followed. Pure."""

import re

MAX_NESTED = 64
"""Terminals within each other by reference that are followed."""
_HEAD = re.compile(r"(?<!\w)(\w++)\s*+(?:\.\s*+-?\d++\s*+)?+(?:\[[^\]]{0,200}+\]\s*+)?+:")
_PART = re.compile(r"\w++|[()\[\]|&]")


def most_joined(grammar: str) -> int:
    """The most `&` that one text has to do with; `grammar` is without literals and comments.

    Of alternatives, and of what follows one another, the one with the most counts. A reference that is
    deeper than MAX_NESTED counts as many.
    """
    before, *rest = _HEAD.split(grammar)
    bodies = {"": before}
    for name, body in zip(rest[::2], rest[1::2], strict=True):
        bodies[name] = f"{bodies.get(name, '')}|{body}"
    joins = _Joins(bodies)
    return max(joins.of(name, 0) for name in bodies)


class _Joins:
    def __init__(self, bodies: dict[str, str]) -> None:
        self._bodies = bodies
        self._known: dict[str, int] = {}

    def of(self, name: str, depth: int) -> int:
        if depth > MAX_NESTED:
            return MAX_NESTED
        if name not in self._known:
            self._known[name] = 0  # for a circle, which is an error
            self._known[name] = self._count(self._bodies[name], depth)
        return self._known[name]

    def _count(self, body: str, depth: int) -> int:
        groups = [_Group()]
        for part in _PART.findall(body):
            if part in "([":
                groups.append(_Group())
            elif part in ")]" and len(groups) > 1:
                inner = groups.pop().end_alternative()
                groups[-1].add(inner)
            elif part == "|":
                groups[-1].end_alternative()
            elif part == "&":
                groups[-1].join()
            elif part in self._bodies and part.lstrip("_")[:1].isupper():
                groups[-1].add(self.of(part, depth + 1))
        return max(group.end_alternative() for group in groups)


class _Group:
    """What is within a pair of parentheses: alternatives of joined sequences."""

    def __init__(self) -> None:
        self._most = 0
        """Of the alternatives that have ended."""
        self._joined = 0
        """Of the current alternative, without its last sequence."""
        self._last = 0

    def add(self, count: int) -> None:
        """A part of the current sequence."""
        self._last = max(self._last, count)

    def join(self) -> None:
        """The current sequence has ended with a `&`."""
        self._joined, self._last = self._joined + self._last + 1, 0

    def end_alternative(self) -> int:
        """The most of the alternatives, the current one included."""
        self._most = max(self._most, self._joined + self._last)
        self._joined = self._last = 0
        return self._most
