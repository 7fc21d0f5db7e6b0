"""What the masks of a grammar allow: where it may end, how it is spelt, what tags leave free."""

from collections.abc import Iterator

import pytest

from engine.grammar.compiler import GrammarCompiler
from engine.request import StructuredOutput
from engine.sampling.token_masks import GrammarMatchers
from engine.vocabulary import Vocabulary
from tests.support.engines import make_request
from tests.support.grammars import CALL, END, SIZE, TOKENS, VOCABULARY, grammar, ids_of, schema, sequence_of


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY)
    yield made
    made.close()


def allowed(compiler: GrammarCompiler, wanted: StructuredOutput, output: list[int]) -> set[int]:
    """The tokens that may come after this output."""
    request = make_request(
        "a", [5, *output], stop_ids=frozenset({END}), grammar=wanted, output_offset=len(output)
    )
    masks = GrammarMatchers(compiler).masks([sequence_of(request, compiler)])
    assert masks is not None
    assert not masks.failed
    mask = masks.of[0]
    return {token_id for token_id in range(SIZE) if mask[token_id // 8] >> token_id % 8 & 1}


def test_every_spelling_of_a_forced_text_is_allowed(compiler: GrammarCompiler) -> None:
    wanted = schema({"const": True})
    assert {TOKENS[token_id] for token_id in allowed(compiler, wanted, [])} == {"t", "true"}
    assert {TOKENS[token_id] for token_id in allowed(compiler, wanted, ids_of("t"))} == {"r"}
    assert allowed(compiler, wanted, ids_of("true")) == {END}


def test_the_end_is_allowed_exactly_where_the_grammar_may_end(compiler: GrammarCompiler) -> None:
    wanted = grammar("regex", "a{2,3}")
    ends = [END in allowed(compiler, wanted, ids_of("a" * count)) for count in range(4)]
    assert ends == [False, False, True, True]
    assert allowed(compiler, wanted, ids_of("aaa")) == {END}


def test_blanks_between_the_parts_of_json_come_to_an_end(compiler: GrammarCompiler) -> None:
    wanted = schema({"type": "object", "properties": {"a": {}}, "required": ["a"]})
    after_blank = allowed(compiler, wanted, ids_of("{ "))
    assert not {TOKENS[token_id] for token_id in after_blank} & {" ", "\n"}
    assert TOKENS.index(" ") not in allowed(compiler, wanted, ids_of("{\n" + " " * 40))


TAGS = {
    "triggers": ["<call", TOKENS[CALL]],
    "tags": [
        {"begin": "<call a>", "schema": {"const": 1}, "end": "!"},
        {"begin": "<call b>", "regex": "[xy]", "end": ""},
        {"begin": TOKENS[CALL] + "to", "end": TOKENS[END] + "."},
        {"begin": TOKENS[CALL] + "in", "end": "|" + TOKENS[CALL]},
    ],
}


@pytest.mark.parametrize(
    ("said", "may_follow"),
    [
        ("<call", " "),
        ("x <call ", "ab"),
        ("<call a>", "1"),
        ("<call a>1", "!"),
        ("<call b>", "xy"),
        (TOKENS[CALL], "ti"),
        ("free " + TOKENS[CALL] + "in text|", TOKENS[CALL]),
        (TOKENS[CALL] + "to text" + TOKENS[END], "."),
    ],
)
def test_from_a_trigger_on_only_the_tag_may_follow(
    compiler: GrammarCompiler, said: str, may_follow: str
) -> None:
    ids = _ids_with_special(said)
    follow = {TOKENS[token_id] for token_id in allowed(compiler, grammar("structural_tags", TAGS), ids)}
    assert follow - {"12", "13", "  "} == ({may_follow} if may_follow in TOKENS else set(may_follow))


@pytest.mark.parametrize("said", ["", "free", "<cal", "<call a>1!", "<call b>x and more", "a" + TOKENS[END]])
def test_outside_tags_all_text_is_free(compiler: GrammarCompiler, said: str) -> None:
    free = allowed(compiler, grammar("structural_tags", TAGS), _ids_with_special(said))
    assert {END, CALL, *ids_of("azAZ{}")} <= free


@pytest.mark.parametrize(
    ("flags", "begin", "after_one"),
    [
        ({}, True, {END, CALL, *ids_of("a")}),
        ({"at_least_one": True}, False, {END, CALL, *ids_of("a")}),
        ({"stop_after_first": True}, True, {END}),
        ({"at_least_one": True, "stop_after_first": True}, False, {END}),
    ],
    ids=str,
)
def test_tags_may_be_required_and_may_be_the_last(
    compiler: GrammarCompiler, flags: dict[str, bool], begin: bool, after_one: set[int]
) -> None:
    wanted = grammar("structural_tags", {**TAGS, **flags})
    assert (END in allowed(compiler, wanted, ids_of("free"))) == begin
    after = allowed(compiler, wanted, ids_of("<call a>1!"))
    assert after == after_one if after_one == {END} else after_one <= after


def _ids_with_special(said: str) -> list[int]:
    for special in (END, CALL):
        said = said.replace(TOKENS[special], chr(special))
    return [ord(letter) if ord(letter) < 2 else TOKENS.index(letter) for letter in said]


# Bits


def test_a_vocabulary_of_any_size_has_its_last_token_and_its_end_apart() -> None:
    for size in (31, 32, 33, 63, 64, 65):
        tokens = (b"", *(b"x" for _ in range(size - 2)), b"a")
        compiler = GrammarCompiler(Vocabulary(tokens, frozenset({0})))
        request = make_request("a", [1], stop_ids=frozenset({0, -1, 9999}), grammar=grammar("regex", "a"))
        sequence = sequence_of(request, compiler)
        followers = GrammarMatchers(compiler)
        told = []
        for token_id in (size - 1, 0):
            masks = followers.masks([sequence])
            assert masks is not None
            told.append([n for n in range(len(masks.of[0]) * 8) if masks.of[0][n // 8] >> n % 8 & 1])
            sequence.append(token_id)
        assert told == [[size - 1], [0]]
        compiler.close()


def test_text_that_a_special_token_ends_is_ended_by_nothing_else() -> None:
    """Also where special tokens have no text, as those that a vocabulary has in reserve."""
    reserve = Vocabulary((*VOCABULARY.tokens, b"", b""), VOCABULARY.special | {SIZE, SIZE + 1})
    compiler = GrammarCompiler(reserve)
    wanted = grammar("lark", f"start: TEXT <[{CALL}]>\nTEXT: /(.|\\n)+/")
    assert allowed(compiler, wanted, ids_of("b")) & {END, CALL, *ids_of("a")} == {CALL, *ids_of("a")}
    assert allowed(compiler, wanted, [*ids_of("b"), CALL]) == {END}
    compiler.close()


def test_masks_bar_what_they_do_not_allow_whatever_rows_they_are_of() -> None:
    import torch

    from engine.sampling.logits_processors import apply_masks
    from engine.sampling.token_masks import Masks

    logits = torch.arange(3 * 20, dtype=torch.float32).view(3, 20)
    masks = Masks({0: bytes([0b101, 0, 0b1000, 0]), 2: bytes([0xFF, 0xFF, 0xFF, 0])})
    apply_masks(changed := logits.clone(), masks)
    assert torch.equal(changed[1:], logits[1:])
    assert changed[0].isfinite().nonzero().flatten().tolist() == [0, 2, 19]
    one = Masks({0: bytes([0b10, 0, 0, 0])})
    apply_masks(changed := logits[:1].clone(), one)
    assert changed[0].isfinite().nonzero().flatten().tolist() == [1]
