import pytest

from engine.grammar.lark_joins import MAX_NESTED, most_joined


@pytest.mark.parametrize(
    ("grammar", "count"),
    [
        ("", 0),
        ("start: x x x", 0),
        ("start: A\nA: x & ~x & x", 2),
        ("start: A\nA: (x & x) | (x & x & x)", 2),
        ("start: A\nA: (x & x) (x & x & x)", 2),
        ("start: A\nA: (x & x) & (x | x & x)", 3),
        ("start: A\nA: B & x\nB: C & x | x\nC: x & x", 3),
        ("start: A B\nA: x & x\nB: x & x", 1),
        ("start: A & B\nA.2: x & x\nB[lazy]: x & x", 3),
        ("start: A\nA: x & x\nA: x & x & x", 2),
        ("start: A\nA: B & x\nB: A & x", 2),
        ("start: ((A & x)) ) & x (\nA: [x & x] & x", 4),
        ("x & x & x", 2),
    ],
)
def test_joined_terminals_are_counted_over_references_and_not_over_alternatives(
    grammar: str, count: int
) -> None:
    assert most_joined(grammar) == count


def test_terminals_without_end_within_each_other_count_as_many() -> None:
    chain = "\n".join(f"T{n}: T{n + 1}" for n in range(3000))
    assert most_joined(f"start: T0\n{chain}") >= MAX_NESTED
