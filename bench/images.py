"""What requests with pictures cost requests of text that run beside them, and how long one holds the GIL."""

import hashlib
import io
import statistics
import threading
import time
from typing import Any

from PIL import Image

from bench.engine_subjects import EngineSubject, make_prompts
from bench.rounds import divide, tell
from engine.request import EngineRequest, PromptImage
from tests.support.vision_families import vision_family
from tests.support.vision_models import FAMILIES, IMAGE_TOKEN, TEXT, picture, save_random_vision_model

COUNT = 8
TEXT_TOKENS = 100
OUTPUT = 128
ROUNDS = 9
SIDE = 224
"""Pixels: 64 tokens for both families."""
LANGUAGE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "max_position_embeddings": 2048,
    "head_dim": 64,
}  # fmt: skip
"""For the tokens of a picture, the vision tower of the first family computes 0.4 times as much as the
language model, as it does in Qwen2.5-VL 7B."""
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}}
QWEN_TOWER = {
    "depth": 2, "hidden_size": 128, "intermediate_size": 384, "num_heads": 4, "out_hidden_size": 256,
    "fullatt_block_indexes": [1], "window_size": 112,
}  # fmt: skip
GEMMA_TOWER = {
    "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": SIDE, "patch_size": 14,
}  # fmt: skip

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Qwen2_5_VLConfig": (
        {"text_config": {**TEXT, **LANGUAGE, **MROPE}, "vision_config": QWEN_TOWER},
        {"size": {"shortest_edge": 28 * 28, "longest_edge": SIDE * SIDE}},
    ),
    "Gemma3Config": (
        {
            "text_config": {**TEXT, **LANGUAGE, "sliding_window": 512},
            "vision_config": GEMMA_TOWER,
            "mm_tokens_per_image": 64,
        },
        {"size": {"height": SIDE, "width": SIDE}},
    ),
}


def run() -> None:
    """Text beside 8 of text ÷ beside 8 with pictures; the GIL with 4096 x 4096 pixels; 2 minutes of CPU."""
    for family in MODELS:
        compare(family)
    for family in FAMILIES:
        watch_gil(family)


def compare(family: str) -> None:
    folder = save_random_vision_model(family, *MODELS[family])
    if family == "Gemma3Config":
        settings = folder / "processor_config.json"
        settings.write_text(settings.read_text().replace('"image_seq_length": 4', '"image_seq_length": 64'))
    engine = EngineSubject(folder, max_running=32)
    times: dict[str, list[tuple[float, float]]] = {"pictures": [], "text": []}
    for turn in range(-1, ROUNDS):
        for kind in sorted(times, reverse=bool(turn % 2)):
            salt = 2 * turn + (kind == "text")
            others = [make_other(engine, kind, COUNT * salt + row) for row in range(COUNT)]
            prompts = make_prompts([TEXT_TOKENS] * COUNT, 7000 + salt, 90)
            texts = [engine.request(prompt, OUTPUT) for prompt in prompts]
            firsts, lasts = engine.first_and_last_tokens([*others, *texts])
            if turn >= 0:
                times[kind].append((statistics.mean(firsts[COUNT:]), max(lasts[COUNT:])))
    engine.close()
    name = family.removesuffix("Config")
    for index, which in enumerate(("first", "last")):
        text, pictures = ([each[index] for each in times[kind]] for kind in ("text", "pictures"))
        tell(f"{name}: {which} token of text, beside text ÷ pictures", divide(text, pictures), ">=0.9")


def make_other(engine: EngineSubject, kind: str, salt: int) -> EngineRequest:
    """A request of as many tokens with a picture, which no cache knows, or without."""
    prompt = make_prompts([TEXT_TOKENS], 1000 + salt, 90)[0]
    if kind == "text":
        return engine.request(prompt, OUTPUT)
    data = picture(1000 + salt, SIDE, SIDE)
    count = engine.engine.image_text(data).tokens
    image = PromptImage(data=data, digest=hashlib.sha256(data).digest(), start=10, length=count)
    prompt[10 : 10 + count] = [IMAGE_TOKEN] * count
    return engine.request(prompt, OUTPUT, images=(image,))


def watch_gil(family: str) -> None:
    """The longest time for which a thread that wakes every millisecond could not run."""
    file = io.BytesIO()
    Image.effect_noise((4096, 4096), 60).convert("RGB").save(file, "PNG", compress_level=1)
    data = file.getvalue()
    process = vision_family(family).processor.process
    longest, done = 0.0, threading.Event()

    def tick() -> None:
        nonlocal longest
        while not done.is_set():
            before = time.perf_counter()
            time.sleep(0.001)
            longest = max(longest, time.perf_counter() - before - 0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    begin = time.perf_counter()
    process(data)
    took = time.perf_counter() - begin
    done.set()
    ticker.join()
    name = family.removesuffix("Config")
    tell(f"{name}: longest s without the GIL of {took:.2f} s", [longest], "<=0.05")
