"""The corpus is random text from a seed, and knows nothing of what the evaluation asks."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from demo import words
from demo.batches import UNTRAINED, Batch, Batches
from demo.conversations import random_conversation
from demo.evaluate import KINDS, cases_of
from demo.evaluation_cases import HELD_OUT_NAMES, HELD_OUT_WORDS, Kind
from demo.facts import random_fact
from demo.rendering import TURN_END
from demo.small_talk import knock
from demo.tasks import add_or_subtract, echo, repeat
from demo.tokenizer import train_tokenizer, word_pieces
from demo.vocabulary import Vocabulary

SEEDS = range(40)


def corpus(seed: int) -> list[object]:
    vocabulary = Vocabulary(seed)
    return [random_conversation(vocabulary) for _ in range(50)]


def first_batches(seed: int) -> list[Batch]:
    tokenizer = train_tokenizer(conversations=20, seed=3, size=400)
    return list(islice(Batches(tokenizer, seed, batch_tokens=2048), 3))


def test_corpus_is_the_same_for_the_same_seed() -> None:
    assert corpus(seed=5) == corpus(seed=5)


def test_corpus_differs_for_another_seed() -> None:
    assert corpus(seed=5) != corpus(seed=6)


def test_corpus_has_more_of_a_task_when_it_is_emphasised() -> None:
    def count_knocks(emphasis: float) -> int:
        vocabulary = Vocabulary(7)
        conversations = [random_conversation(vocabulary, {knock: emphasis}) for _ in range(200)]
        return str(conversations).count("A knock knock joke.")

    assert count_knocks(0) < count_knocks(1) < count_knocks(20)


def test_tokenizer_is_the_same_for_the_same_seed() -> None:
    first, second = (train_tokenizer(conversations=20, seed=3, size=400) for _ in range(2))

    assert first.to_str() == second.to_str()


def test_batches_are_the_same_for_the_same_seed() -> None:
    for one, other in zip(first_batches(seed=4), first_batches(seed=4), strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.positions, other.positions)


def test_batches_train_only_what_the_assistant_says_up_to_its_end() -> None:
    tokenizer = train_tokenizer(conversations=20, seed=3, size=400)
    turn_end = tokenizer.token_to_id(TURN_END)
    batch = next(iter(Batches(tokenizer, seed=4, batch_tokens=2048)))

    trained = batch.labels != UNTRAINED
    assert torch.equal(batch.labels[trained], batch.ids[trained])
    ends = trained[:, :-1] & ~trained[:, 1:]
    assert set(batch.ids[:, :-1][ends].tolist()) == {turn_end}


def test_word_pieces_are_lower_case_letters() -> None:
    pieces = word_pieces(train_tokenizer(conversations=20, seed=3, size=400))

    assert len(pieces) > 20
    assert all(piece.isalpha() and piece.islower() for piece in pieces)


def test_words_of_the_evaluation_are_in_no_list_of_the_corpus() -> None:
    lists = [value for value in vars(words).values() if isinstance(value, tuple)]
    known = {word.lower() for entries in lists for word in entries}

    assert len(lists) > 8
    assert known.isdisjoint(word.lower() for word in HELD_OUT_NAMES + HELD_OUT_WORDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_evaluation_asks_the_same_cases_each_time(kind: Kind) -> None:
    assert cases_of(kind, 5) == cases_of(kind, 5)


def test_echo_answers_with_a_part_of_the_request() -> None:
    for seed in SEEDS:
        [exchange] = echo(Vocabulary(seed))
        assert exchange.answer in exchange.request


def test_repeat_counts_down_to_one() -> None:
    for seed in SEEDS:
        [exchange] = repeat(Vocabulary(seed))
        numbers = [int(line.split(".")[0]) for line in exchange.answer.splitlines()]
        assert numbers == list(range(len(numbers), 0, -1))


def test_sums_are_right() -> None:
    for seed in SEEDS:
        [exchange] = add_or_subtract(Vocabulary(seed))
        a, sign, b, _, result = exchange.answer.split()
        assert int(result) == (int(a) + int(b) if sign == "+" else int(a) - int(b)) >= 0


def test_facts_are_answered_with_what_was_told() -> None:
    for seed in SEEDS:
        fact = random_fact(Vocabulary(seed))
        value = fact.answer.rstrip(".").split()[-1]
        assert value in fact.statement
        assert value in fact.acknowledgement
