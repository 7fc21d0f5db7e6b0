"""Pictures in vLLM's calls: one token each, with their files beside them."""

import base64
import hashlib
import json
from typing import Any

from engine.remote.engine_protocol import ImageFile
from engine.remote.vllm_protocol import VllmProtocol
from engine.request import PromptImage
from tests.unit.engine.remote.test_vllm_protocol import call_of, sent

PNG = b"\x89PNG and so on"
JPEG = b"\xff\xd8\xff and so on"


def image(data: bytes, start: int, length: int) -> PromptImage:
    return PromptImage(data=data, digest=hashlib.sha256(data).digest(), start=start, length=length)


def body_of(tokens: tuple[int, ...], *images: PromptImage, salt: str = "") -> dict[str, Any]:
    call = call_of(images=images, cache_salt=salt)
    request = VllmProtocol().generate_request(
        type(call)(call_id="a", request=call.request, tokens=tokens, max_tokens=4, seed=1), "base"
    )
    body: dict[str, Any] = json.loads(request.body)
    return body


def test_each_picture_has_one_token_and_its_file() -> None:
    body = body_of((1, 9, 9, 9, 2, 9, 9, 3, 4), image(PNG, 1, 3), image(JPEG, 5, 2))
    assert body["token_ids"] == [1, 9, 2, 9, 3, 4]
    assert [part["type"] for part in body["content_parts"]] == ["image_url", "image_url"]
    heads, files = zip(*(part["url"].split(",") for part in body["content_parts"]), strict=True)
    assert heads == ("data:image/png;base64", "data:image/jpeg;base64")
    assert [base64.b64decode(file) for file in files] == [PNG, JPEG]


def test_neighbouring_pictures_stay_apart() -> None:
    assert body_of((9, 9, 9, 9, 9), image(PNG, 0, 2), image(JPEG, 2, 3))["token_ids"] == [9, 9]


def test_a_call_without_pictures_has_no_parts() -> None:
    assert "content_parts" not in sent(call_of())


def test_requests_of_different_salts_share_no_cached_picture() -> None:
    ids = [
        body_of((9, 9), image(PNG, 0, 2), salt=salt)["content_parts"][0]["uuid"]
        for salt in ("", "a", "b", "a")
    ]
    assert len(set(ids)) == 3
    assert ids[1] == ids[3]
    asked = json.loads(
        VllmProtocol().image_request(ImageFile(PNG, hashlib.sha256(PNG).digest(), "a"), "base").body
    )
    (part,) = asked["messages"][0]["content"]
    assert part["uuid"] == ids[1]
    assert asked["mm_payload"] == "none"


def test_the_tokens_of_a_rendered_picture_are_read() -> None:
    rendered = {
        "request_id": "chatcmpl-a",
        "token_ids": [1272, 268, 198, 1280, 1280, 1280, 1273],
        "features": {
            "mm_hashes": {"image": ["e9"]},
            "mm_placeholders": {"image": [{"offset": 3, "length": 3}]},
            "kwargs_data": None,
            "mm_metadata": None,
        },
        "sampling_params": {"temperature": 1.0},
    }
    assert VllmProtocol().read_image_tokens(json.dumps(rendered).encode()) == (1280, 1280, 1280)
