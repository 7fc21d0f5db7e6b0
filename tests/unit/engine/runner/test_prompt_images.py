"""Greedy tokens after pictures equal `model.generate` with the processor's own tensors, for every family."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.request import EngineRequest
from tests.support.engines import Bench, make_prompt, make_request
from tests.support.vision_families import COUNT, VisionFamily, vision_family
from tests.support.vision_models import FAMILIES, picture

BLOCK = 4
WIDE = (112, 60)
TALL = (40, 110)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> VisionFamily:
    return vision_family(request.param)


@pytest.fixture(scope="module")
def bench(model: VisionFamily) -> Iterator[Bench]:
    """Prompts are computed in chunks, and blocks of the prefix cache end inside of pictures."""
    bench = model.start(block_size=BLOCK)
    yield bench
    bench.engine.close(drain=True)


def assert_equal_to_generate(
    model: VisionFamily, bench: Bench, *requests: EngineRequest, output: int = COUNT
) -> None:
    """The requests run together."""
    for request, outcome in zip(requests, bench.run(*requests), strict=True):
        assert outcome.tokens == model.generate(request), request.request_id
        assert len(outcome.tokens) == output


def test_answers_about_pictures_equal_generate_alone_and_beside_others(
    model: VisionFamily, bench: Bench
) -> None:
    one = model.request("one", "ab ", picture(1), " cde")
    assert_equal_to_generate(model, bench, one)
    assert_equal_to_generate(
        model,
        bench,
        model.request("two", picture(2, *WIDE), " fg hi ", picture(3), "jkl"),
        model.request("three", "m", picture(4), " ", picture(5, *TALL), "n", picture(4), "o"),
        model.request("long", "x" * 40, picture(6, *WIDE), "y" * 30),
        make_request("text", [token % 90 for token in make_prompt(37, 3)], COUNT),
    )

    other = model.request("another picture", "ab ", picture(7), " cde")
    assert model.generate(other) != model.generate(one), "a model that does not look proves nothing"


@pytest.mark.parametrize("before", [3, 20, 40])
def test_a_cached_prefix_may_end_before_in_or_after_a_picture(
    model: VisionFamily, bench: Bench, before: int
) -> None:
    while model.request("any", "a" * before, picture(1, *WIDE)).images[0].end % BLOCK == 0:
        before += 1  # or else no block ends in the picture
    salt = str(before)
    parts = "a" * before, picture(1, *WIDE)
    first = model.request(f"first {before}", *parts, "b" * 9, cache_salt=salt)
    after = model.request(f"after {before}", *parts, "b" * 5 + "cd", cache_salt=salt)
    other = model.request(f"other {before}", parts[0], picture(2, *WIDE), "b" * 9, cache_salt=salt)
    image = first.images[0]
    inside = replace(
        first, request_id=f"inside {before}", prompt=(*first.prompt[: image.end], *first.prompt[:3])
    )
    stranger = replace(after, request_id=f"stranger {before}", cache_salt=f"not {before}")

    cached = []
    for request in (first, after, inside, other, stranger):
        (outcome,) = bench.run(request)
        assert outcome.tokens == model.generate(request), request.request_id
        cached.append(outcome.last.usage.cached)

    is_whole = model.model_type.startswith("gemma")
    assert cached[1] > image.end
    assert cached[2] == (image.start if is_whole else image.end) // BLOCK * BLOCK
    assert cached[3] <= image.start
    assert cached[4] == 0


def test_preempted_requests_with_pictures_go_on(model: VisionFamily) -> None:
    requests = [
        model.request(str(n), "a" * (3 + n), picture(n, *WIDE), "b" * (n + 1), max_tokens=30)
        for n in range(4)
    ]
    # Room for two prompts, not for both outputs.
    longest = max(len(request.prompt) for request in requests)
    blocks = max(2 * longest, longest + 30) // BLOCK + 6
    bench = model.start(block_size=BLOCK, kv_blocks=blocks)
    assert_equal_to_generate(model, bench, *requests, output=30)
    assert bench.engine.stats().preemptions > 0
    bench.engine.close(drain=True)


def test_an_interrupted_output_goes_on_with_the_same_tokens(model: VisionFamily, bench: Bench) -> None:
    whole = model.request("whole", "ab", picture(8, *WIDE), "cd", cache_salt="whole")
    tokens = model.generate(whole)
    for done in (1, 6):
        resumed = replace(
            whole,
            request_id=f"resumed after {done}",
            prompt=(*whole.prompt, *tokens[:done]),
            max_tokens=COUNT - done,
            output_offset=done,
            cache_salt=str(done),
        )
        assert bench.run(resumed)[0].tokens == tokens[done:]


@pytest.mark.parametrize("settings", [{"decode": "static"}, {"pipelined": True, "decode": "static"}], ids=str)
def test_static_and_pipelined_steps_give_the_same(model: VisionFamily, settings: dict[str, object]) -> None:
    bench = model.start(**settings)
    assert_equal_to_generate(
        model,
        bench,
        model.request("two", picture(2, *WIDE), " fg hi ", picture(3), "jkl"),
        model.request("one", "m", picture(4, *TALL), "n"),
        make_request("text", [token % 90 for token in make_prompt(37, 3)], COUNT),
    )
    bench.engine.close(drain=True)
