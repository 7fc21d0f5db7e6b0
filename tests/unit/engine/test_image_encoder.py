import torch

from engine.image_encoder import ImageEncoder
from engine.request import PromptImage
from tests.support.vision_families import vision_family
from tests.support.vision_models import IMAGE_TOKEN


def test_two_pictures_without_text_between_them_have_positions_of_their_own() -> None:
    encoder = ImageEncoder(vision_family("Qwen2VLConfig").reference)
    grid = torch.tensor([[1, 4, 8]])  # two rows of four tokens
    prompt = [1, 2, *[IMAGE_TOKEN] * 16, 3]
    images = [PromptImage(data=b"", digest=b"", start=start, length=8) for start in (2, 10)]

    rope = encoder.rope_positions(prompt, images, [grid, grid])

    time, height, width = rope.prompt.tolist()
    assert time == [0, 1, *[2] * 8, *[6] * 8, 10]
    assert height == [0, 1, *[2] * 4, *[3] * 4, *[6] * 4, *[7] * 4, 10]
    assert width == [0, 1, *[2, 3, 4, 5] * 2, *[6, 7, 8, 9] * 2, 10]
    assert rope.delta == 11 - len(prompt)


def test_the_image_token_outside_of_pictures_is_text() -> None:
    encoder = ImageEncoder(vision_family("Qwen2VLConfig").reference)
    image = PromptImage(data=b"", digest=b"", start=2, length=2)
    prompt = [IMAGE_TOKEN, 1, IMAGE_TOKEN, IMAGE_TOKEN, 2, IMAGE_TOKEN]
    rope = encoder.rope_positions(prompt, [image], [torch.tensor([[1, 2, 4]])])
    assert rope.prompt.tolist() == [[0, 1, 2, 2, 4, 5], [0, 1, 2, 2, 4, 5], [0, 1, 2, 3, 4, 5]]
