"""Greedy tokens after pictures equal `model.generate` with the processor's own tensors, for every family."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.attention.flash_attention import FlashAttentionBackend
from engine.attention.paged_attention import PagedForward, current_step
from engine.attention.selection import AttentionChoice
from engine.request import Beams, EngineRequest, Failed, Finished, PromptLogprobs, RequestRefused
from engine.runner import image_embeddings
from tests.support.engines import Bench, attend_with, make_prompt, make_request, start_model, tiny_model
from tests.support.flash import flash_attn_with_kvcache as flash
from tests.support.rounds import faults_only
from tests.support.vision_families import COUNT, VisionFamily, vision_family
from tests.support.vision_models import FAMILIES, IMAGE_TOKEN, picture

BLOCK = 4
WIDE = (112, 60)
TALL = (40, 110)


LIKE_ANOTHER = ("Qwen2VLConfig", "Qwen3VLMoeConfig", "Glm4vMoeConfig")
"""Families whose pictures take the way of another one's: that of Qwen2.5-VL, Qwen3-VL and GLM-4V."""


@pytest.fixture(
    scope="module",
    params=[*(name for name in FAMILIES if name not in LIKE_ANOTHER), *faults_only(*LIKE_ANOTHER)],
)
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


@pytest.mark.parametrize("before", [*faults_only(3), 20, *faults_only(40)])
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


@pytest.mark.parametrize("decode", ["eager", "static"])
def test_a_paged_kernel_gives_the_same_and_computes_all_steps_without_a_two_way_picture(
    model: VisionFamily, decode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FlashAttentionBackend("a kernel", flash)
    choice = AttentionChoice("a kernel", 16, kernel)
    attend_with(monkeypatch, choice)
    bench = model.start(decode=decode)
    steps: list[bool] = []

    def note(_network: object, _arguments: object, named: dict[str, Any]) -> None:
        steps.append(isinstance(current_step.get(), PagedForward))

    bench.network.register_forward_pre_hook(note, with_kwargs=True)
    assert_equal_to_generate(
        model,
        bench,
        model.request("two", picture(2, *WIDE), " fg hi ", picture(3), "jkl"),
        make_request("text", [token % 90 for token in make_prompt(37, 3)], COUNT),
    )
    is_two_way = model.model_type.startswith("gemma")
    assert steps[-1], "the last steps have no picture"
    assert all(steps) != is_two_way
    bench.engine.close(drain=True)


@pytest.mark.parametrize("name", ["Qwen3VLConfig", "Gemma4Config", "LlavaConfig"])
def test_logprobs_of_a_prompt_with_a_picture_are_those_of_the_model(name: str) -> None:
    model = vision_family(name)
    bench = model.start()
    request = model.request("1", "a" * 20, picture(1, *WIDE), "cdef", prompt_logprobs=0)
    bench.run(request)
    bench.engine.close(drain=True)
    parts = [m for m in bench.listener.of("1") if isinstance(m, PromptLogprobs)]
    chosen = [each.chosen for part in parts for each in part.logprobs]
    expected = model.prompt_logits(request).log_softmax(dim=1)[:-1]
    assert chosen == pytest.approx(
        expected.gather(1, torch.tensor(request.prompt[1:])[:, None])[:, 0], abs=1e-3
    )


def test_pictures_are_read_in_half_precision(model: VisionFamily) -> None:
    bench = model.start(dtype="bfloat16")
    request = model.request("1", "ab", picture(1, *WIDE), "cd")
    assert len(bench.run(request)[0].tokens) == COUNT
    bench.engine.close(drain=True)


# Failures


@pytest.fixture
def llava() -> VisionFamily:
    return vision_family("LlavaConfig")


def fail_encoding(bench: Bench, error: Exception, *, times: int = 1000) -> list[int]:
    """The vision tower raises the error so many times; returns a list that gets an entry for each call."""
    calls = list[int]()

    def fail(*_arguments: object) -> None:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error

    bench.network.model.vision_tower.register_forward_pre_hook(fail)
    return calls


def beside_text(model: VisionFamily, bench: Bench, **settings: Any) -> Finished | Failed:
    """Runs a request with a picture beside two of text, which must be undisturbed; returns its end."""
    texts = [make_request(f"text {n}", [t % 90 for t in make_prompt(30, n)], 20) for n in range(2)]
    picture_request = model.request("picture", "a" * 30, picture(1), "b", **settings)
    first, outcome, second = bench.run(texts[0], picture_request, texts[1])
    for text, done in ((texts[0], first), (texts[1], second)):
        assert done.tokens == model.generate(text)
    (again,) = bench.run(replace(texts[0], request_id="later"))
    assert again.tokens == first.tokens
    if isinstance(outcome.last, Finished):
        assert outcome.tokens == model.generate(picture_request)
    return outcome.last


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_vision_tower_that_raises_fails_that_request_alone(llava: VisionFamily, pipelined: bool) -> None:
    bench = llava.start(pipelined=pipelined)
    fail_encoding(bench, RuntimeError("split_with_sizes"))
    end = beside_text(llava, bench)
    assert isinstance(end, Failed)
    assert (end.code, end.message) == ("engine_error", "A picture: RuntimeError: split_with_sizes")
    bench.engine.close(drain=True)


def test_a_vision_tower_without_memory_is_tried_again_without_the_cached_pictures(
    llava: VisionFamily,
) -> None:
    bench = llava.start()
    calls = fail_encoding(bench, torch.OutOfMemoryError("none"), times=1)
    assert isinstance(beside_text(llava, bench), Finished)
    assert len(calls) == 2
    bench.engine.close(drain=True)


def test_a_picture_that_needs_more_memory_than_there_is_fails_that_request_alone(llava: VisionFamily) -> None:
    bench = llava.start()
    fail_encoding(bench, torch.OutOfMemoryError("none"))
    end = beside_text(llava, bench)
    assert isinstance(end, Failed)
    assert end.code == "out_of_memory"
    assert bench.engine.stats().preemptions == 0
    bench.engine.close(drain=True)


def test_a_picture_with_other_rows_than_tokens_fails_its_request_alone(llava: VisionFamily) -> None:
    bench = llava.start()
    projector = bench.network.model.multi_modal_projector
    projector.register_forward_hook(lambda _module, _arguments, rows: rows[..., 1:, :])
    end = beside_text(llava, bench)
    assert isinstance(end, Failed)
    assert "3 rows of embeddings and 4 tokens" in end.message
    bench.engine.close(drain=True)


def test_a_broken_device_ends_the_engine_as_in_any_step(llava: VisionFamily) -> None:
    bench = llava.start()
    fail_encoding(bench, torch.AcceleratorError("CUDA error: an illegal memory access"))
    request = llava.request("1", "a", picture(1), "b")
    assert bench.run(request)[0].last.code == "engine_dead"  # type: ignore[union-attr]
    bench.engine.close(drain=True)


def test_a_picture_is_encoded_once_for_requests_of_one_salt(llava: VisionFamily) -> None:
    bench = llava.start()
    calls = fail_encoding(bench, RuntimeError(), times=0)
    for name, salt in enumerate(("one", "one", "other")):
        bench.run(llava.request(str(name), "a" * name, picture(1), "b", cache_salt=salt))
    assert len(calls) == 2
    bench.engine.close(drain=True)


def test_pictures_that_left_the_caches_are_processed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROCESSED_BYTES", "ENCODED_BYTES", "LAYOUT_BYTES"):
        monkeypatch.setattr(image_embeddings, name, 1)
    model = vision_family("Qwen2VLConfig")
    bench = model.start()
    requests = [model.request(str(n), "ab", picture(n), "c", picture(n + 4), "d") for n in range(3)]
    assert_equal_to_generate(model, bench, *requests)
    bench.engine.close(drain=True)


# Before a request is accepted


def test_the_engine_says_how_a_picture_is_written(model: VisionFamily, bench: Bench) -> None:
    text = bench.engine.image_text(picture(1, *WIDE))
    assert model.tokenizer(text.text)["input_ids"].count(IMAGE_TOKEN) == text.tokens
    assert bench.engine.model_info.image_token_id == IMAGE_TOKEN
    assert bench.engine.model_info.image_placeholder == model.processor.placeholder
    assert bench.engine.model_info.image_placeholder in text.text


def test_a_request_whose_tokens_do_not_fit_its_picture_is_refused(model: VisionFamily, bench: Bench) -> None:
    request = model.request("1", "ab", picture(1, *WIDE), "cd")
    image = request.images[0]
    bench.engine.check(request)
    wrong = [
        replace(request, images=(replace(image, length=image.length - 1),)),
        replace(request, images=(replace(image, start=image.start + 1, length=image.length - 1),)),
        replace(request, images=(replace(image, digest=bytes(32)),)),
    ]
    for bad in wrong:
        with pytest.raises(RequestRefused) as caught:
            bench.engine.check(bad)
        assert caught.value.reason == "bad_image"


def test_a_picture_longer_than_the_kv_cache_is_refused() -> None:
    model = vision_family("Gemma4Config")
    bench = model.start(kv_blocks=4, block_size=16)
    with pytest.raises(RequestRefused, match="tokens; the model can hold 64 in all"):
        bench.engine.image_text(picture(1, *WIDE))
    bench.engine.close(drain=True)


def test_a_model_without_a_vision_tower_takes_no_picture() -> None:
    bench = start_model(tiny_model())
    with pytest.raises(RequestRefused, match="The model reads no pictures"):
        bench.engine.image_text(picture(1))
    bench.engine.close(drain=True)


def test_a_beam_search_about_a_picture_is_that_of_transformers() -> None:
    model = vision_family("LlavaConfig")
    bench = model.start()
    request = model.request("1", "ab", picture(1), "cd", beams=Beams(width=3))
    assert bench.run(request)[0].tokens == model.generate(request)
    bench.engine.close(drain=True)
