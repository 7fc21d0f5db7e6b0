import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoConfig

from engine.config import ModelRefused
from engine.image_encoder import BadImage, ImageEncoder, ImageProcessor
from engine.request import MAX_IMAGE_PIXELS
from tests.support.engines import start_model
from tests.support.vision_families import VisionFamily, vision_family
from tests.support.vision_models import (
    FAMILIES,
    IMAGE_TOKEN,
    PIXTRAL,
    picture,
    save_processor,
    save_random_vision_model,
)

WITHOUT_PROCESSOR = ("Mistral3Config", PIXTRAL)
"""transformers cannot import `PixtralProcessor` without torchvision."""


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> VisionFamily:
    return vision_family(request.param)


def saved(image: Image.Image, format_name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format_name, **options)
    return file.getvalue()


BLOCKS = Image.open(io.BytesIO(picture(3, 64, 48)))


@pytest.mark.parametrize(
    "data",
    [
        saved(BLOCKS, "JPEG"),
        saved(BLOCKS, "WEBP"),
        saved(BLOCKS.convert("P"), "GIF", save_all=True, append_images=[BLOCKS.convert("P")]),
        saved(BLOCKS.convert("RGBA"), "PNG"),
        saved(BLOCKS.convert("L"), "PNG"),
        saved(BLOCKS.convert("CMYK"), "JPEG"),
        saved(BLOCKS.convert("I;16"), "PNG"),
        saved(BLOCKS.convert("1"), "PNG"),
    ],
    ids=["jpeg", "webp", "gif", "rgba", "grey", "cmyk", "16 bits", "1 bit"],
)
def test_pictures_of_all_formats_are_read(data: bytes) -> None:
    processed = vision_family("Qwen2VLConfig").processor.process(data)
    assert processed.layout.text.tokens == 4
    assert processed.layout.grid is not None
    assert processed.layout.grid.tolist() == [[1, 4, 4]]


@pytest.mark.parametrize("size", [(60, 44), (112, 60), (33, 110), (1, 1), (3, 2), (2000, 40), (100, 900)])
def test_the_text_has_a_token_for_each_row_of_embeddings_or_the_picture_is_refused(
    model: VisionFamily, size: tuple[int, int]
) -> None:
    try:
        processed = model.processor.process(picture_of(size))
    except BadImage as error:
        assert str(error).startswith("The model does not take this picture")  # noqa: PT017
        return
    with torch.inference_mode():
        rows = ImageEncoder(model.reference).encode(processed.tensors).embeddings
    text = processed.layout.text
    assert model.tokenizer(text.text)["input_ids"].count(IMAGE_TOKEN) == text.tokens == len(rows)
    assert processed.nbytes > 0


def picture_of(size: tuple[int, int]) -> bytes:
    return saved(Image.new("RGB", size, (90, 20, 160)), "PNG")


def bomb() -> bytes:
    """A small file that says that it is large."""
    file = bytearray(saved(Image.new("1", (MAX_IMAGE_PIXELS // 1024 + 1, 1024)), "PNG", optimize=True))
    assert len(file) < 50_000
    return bytes(file)


def claimed_size(width: int, height: int) -> bytes:
    """A small file whose header says another size."""
    file = bytearray(saved(BLOCKS, "PNG"))
    file[16:24] = struct.pack(">II", width, height)
    file[29:33] = struct.pack(">I", zlib.crc32(file[12:29]))
    return bytes(file)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: b"", "no PNG, JPEG, WebP or GIF"),
        (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no PNG, JPEG, WebP or GIF"),
        (lambda: saved(BLOCKS, "BMP"), "no PNG, JPEG, WebP or GIF"),
        (lambda: saved(BLOCKS, "TIFF"), "no PNG, JPEG, WebP or GIF"),
        (lambda: saved(BLOCKS, "PDF"), "no PNG, JPEG, WebP or GIF"),
        (lambda: saved(BLOCKS, "PNG")[:900], "cannot be read"),
        (lambda: saved(BLOCKS, "JPEG")[:900], "cannot be read"),
        (bomb, "16777216 are allowed"),
        (lambda: claimed_size(5000, 4000), "16777216 are allowed"),
        (lambda: claimed_size(10_000, 10_000), "more than 16777216 pixels"),
        (lambda: claimed_size(2**31 - 1, 2**31 - 1), "pixels"),
        (lambda: claimed_size(0, 7), "cannot be read|no PNG"),
    ],
)
def test_what_cannot_be_read_is_refused(make: Callable[[], bytes], sentence: str) -> None:
    with pytest.raises(BadImage, match=sentence):
        vision_family("LlavaConfig").processor.process(make())


def test_every_prefix_of_a_file_is_read_or_refused() -> None:
    data = saved(BLOCKS, "PNG")
    processor = vision_family("LlavaConfig").processor
    for end in range(0, len(data), 7):
        try:
            processor.process(data[:end])
        except BadImage:
            continue


def test_a_family_that_is_not_compared_with_generate_answers_text_only() -> None:
    class Unknown:
        model_type = "paligemma"

    with pytest.raises(ModelRefused, match="paligemma"):
        ImageProcessor.load(vision_family("LlavaConfig").folder, Unknown(), 1024)  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["no processor", "another size"])
def test_a_folder_whose_processor_does_not_fit_answers_text_only(damage: str) -> None:
    folder = save_random_vision_model("LlavaConfig")
    if damage == "no processor":
        (folder / "preprocessor_config.json").unlink()
    else:
        settings = folder / "processor_config.json"
        settings.write_text(settings.read_text().replace('"patch_size": 14', '"patch_size": 7'))
    bench = start_model(folder)
    assert bench.engine.model_info.image_placeholder is None
    assert bench.engine.model_info.image_token_id is None
    bench.engine.close(drain=True)


def test_the_model_says_its_placeholder_and_token(model: VisionFamily) -> None:
    assert model.processor.token_id == IMAGE_TOKEN
    gemma = model.model_type == "gemma3"
    expected = "<boi>" if gemma else model.tokenizer.convert_ids_to_tokens(IMAGE_TOKEN)
    assert model.processor.placeholder == expected


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # transformers' own, GLM-4V
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in WITHOUT_PROCESSOR])
def test_text_and_tensors_are_those_of_the_whole_processor(name: str) -> None:
    model = vision_family(name)
    texts: Any = model.processor._texts
    data = picture(5, 112, 60)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    expected = texts(text=[f"a{model.processor.placeholder}b"], images=[[image]], return_tensors="pt")
    processed = model.processor.process(data)
    assert (
        model.tokenizer(f"a{processed.layout.text.text}b")["input_ids"] == expected["input_ids"][0].tolist()
    )
    for name in set(expected) & set(processed.tensors):
        assert torch.equal(processed.tensors[name], expected[name]), name
    assert "pixel_values" in set(expected) & set(processed.tensors)


def test_rows_of_a_pixtral_picture_are_broken() -> None:
    text = vision_family("Mistral3Config").processor.process(picture(5, 112, 60)).layout.text
    assert text.text == "[IMG_BREAK]".join(["[IMG]" * 4] * 3) + "[IMG_END]"
    assert text.tokens == 12
    text = vision_family("LlavaConfig with Pixtral").processor.process(picture(5, 112, 60)).layout.text
    assert text.text == "[IMG_BREAK]".join(["[IMG]" * 4] * 3) + "[IMG_END]"


AREA = {"shortest_edge": 28 * 28 * 4, "longest_edge": 12_845_056}
EDGE = {"longest_edge": 1540}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen2VLConfig", AREA),
        ("Qwen3VLConfig", AREA),
        ("Glm4vConfig", AREA),
        ("Mistral3Config", EDGE),
        (PIXTRAL, EDGE),
    ],
)
def test_a_large_picture_is_shrunk_to_the_most_tokens(
    name: str, size: dict[str, int], tmp_path: Path
) -> None:
    save_processor(name, tmp_path, {"size": size})
    config = AutoConfig.from_pretrained(vision_family(name).folder)
    processor, unbounded = (ImageProcessor.load(tmp_path, config, most) for most in (50, 10_000))
    for side in ((700, 700), (150, 900), (900, 150)):
        tokens = processor.process(picture_of(side)).layout.text.tokens
        assert 4 <= tokens <= 50
        assert unbounded.process(picture_of(side)).layout.text.tokens > tokens


def test_settings_of_the_folder_count_where_they_are_smaller() -> None:
    model = vision_family("Qwen2VLConfig")
    assert model.processor.process(picture_of((900, 900))).layout.text.tokens == 16
