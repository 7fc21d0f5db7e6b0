from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import PromptImage
from engine.scheduling.scheduler import ImageTurn, ScheduledChunk, blocks_outside_images
from tests.support.play import Play, limits
from tests.support.rounds import example_count


def image(start: int, length: int, name: int = 0) -> PromptImage:
    return PromptImage(data=b"", digest=bytes([name]) * 32, start=start, length=length)


@pytest.mark.parametrize(
    ("start", "count", "clipped"),
    [(0, 5, 5), (0, 10, 10), (0, 20, 20), (0, 40, 30), (12, 40, 18), (30, 40, 20), (50, 40, 40)],
)
def test_a_chunk_has_tokens_of_one_picture(start: int, count: int, clipped: int) -> None:
    images = (image(10, 5), image(30, 5), image(50, 5)) if start < 50 else ()
    assert ImageTurn(whole_images=False).clip(images, start, count) == clipped


def test_other_requests_of_the_step_come_up_to_their_picture_and_no_further() -> None:
    turn = ImageTurn(whole_images=False)
    assert turn.clip((image(3, 5),), 0, 20) == 20
    assert turn.clip((image(3, 5),), 0, 20) == 3
    assert turn.clip((image(3, 5),), 3, 20) == 0
    assert turn.clip((image(3, 5),), 5, 20) == 0
    assert turn.clip((image(3, 5),), 8, 20) == 20
    assert turn.clip((), 0, 20) == 20


def test_a_picture_that_is_computed_whole_begins_a_chunk_unless_it_fits() -> None:
    assert ImageTurn(whole_images=True).clip((image(3, 9),), 0, 20) == 20
    assert ImageTurn(whole_images=True).clip((image(3, 9),), 0, 12) == 12
    assert ImageTurn(whole_images=True).clip((image(3, 9),), 0, 11) == 3
    assert ImageTurn(whole_images=True).clip((image(3, 9),), 3, 2) == 9


def test_a_chunk_that_stops_before_a_whole_picture_leaves_the_turn_to_others() -> None:
    turn = ImageTurn(whole_images=True)
    assert turn.clip((image(3, 9),), 0, 11) == 3
    assert turn.clip((image(3, 9),), 0, 20) == 20


def test_a_prefix_is_reused_up_to_the_picture_that_it_ends_in() -> None:
    images = (image(6, 4), image(12, 8))
    assert [blocks_outside_images(images, blocks, 4) for blocks in range(7)] == [0, 1, 1, 3, 3, 5, 6]


def test_a_picture_larger_than_the_budget_is_computed_whole_beside_requests_that_generate() -> None:
    play = Play(limits(whole_images=True, token_budget=8, max_running=4))
    short = play.add(3, 20)
    play.step()
    long = play.add(60, 1, salt=1, images=(image(5, 40),))
    steps = []
    while long.request.request_id not in play.ended:
        steps.append({chunk.sequence: chunk.count for chunk in play.step()})
    assert [step[long] for step in steps] == [5, 40, 7, 7, 1]
    assert [step[short] for step in steps] == [1, 1, 1, 1, 1]


def test_a_picture_of_one_token_at_the_end_of_a_prompt_takes_its_turn() -> None:
    play = Play(limits())
    first, second = (play.add(9, 3, salt, images=(image(8, 1, salt),)) for salt in (1, 2))
    assert [(chunk.sequence, chunk.count) for chunk in play.step()] == [(first, 9), (second, 8)]
    assert [(chunk.sequence, chunk.count) for chunk in play.step()] == [(first, 1), (second, 1)]


@settings(max_examples=example_count(150), deadline=None)
@given(st.data())
def test_requests_with_pictures_end_and_each_step_computes_one_picture(data: st.DataObject) -> None:
    blocks = data.draw(st.integers(4, 24), label="blocks")
    running = data.draw(st.integers(1, 5), label="running")
    whole = data.draw(st.booleans(), label="whole")
    budget = data.draw(st.integers(running, 24), label="budget")
    play = Play(limits(kv_blocks=blocks, max_running=running, token_budget=budget, whole_images=whole))
    steps = 0
    for _ in range(data.draw(st.integers(1, 8), label="requests")):
        prompt = data.draw(st.integers(1, blocks * 4 - 1))
        output = data.draw(st.integers(1, min(12, blocks * 4 - prompt)))
        bounds = data.draw(st.lists(st.integers(0, prompt), max_size=8, unique=True).map(sorted))
        pairs = zip(bounds[::2], bounds[1::2], strict=False)
        name = data.draw(st.integers(0, 1))
        images = tuple(image(start, end - start, name) for start, end in pairs)
        play.add(prompt, output, salt=data.draw(st.integers(0, 1)), images=images)
        for _ in range(data.draw(st.integers(0, 4))):
            if not play.scheduler.idle:
                check(play.step(), play)
    while not play.scheduler.idle:
        check(play.step(), play)
        steps += 1
        assert steps < 2000, "a request starves"
    assert len(play.ended) == play.arrivals


def check(plan: Sequence[ScheduledChunk], play: Play) -> None:
    pictures = []
    for chunk in plan:
        end = chunk.start + chunk.count
        for picture in chunk.sequence.request.images:
            if picture.start < end and chunk.start < picture.end:
                pictures.append(picture)
                if play.limits.whole_images:
                    assert chunk.start <= picture.start
                    assert picture.end <= end
    assert plan, "no request can move"
    assert len(pictures) <= 1
    surplus = pictures[0].length - 1 if pictures and play.limits.whole_images else 0
    assert sum(chunk.count for chunk in plan) <= play.limits.token_budget + surplus
