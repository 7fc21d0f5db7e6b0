from uuid import UUID

import pytest

from server.maintenance.audit_responses import check_conversation, check_image, check_uses
from server.protocol.input_images import content_of
from server.protocol.responses.items import InputImage, InputText, Message, encode_item
from server.store.audit_snapshot import ConversationImages, UnsoundImage

ONE, TWO = bytes(32), bytes([1] * 32)
LOST = f"its item msg_1 names {content_of(ONE)}, which is not kept for it."
LEFT = f"{content_of(TWO)} is kept for its item msg_1, which does not name it."
CONVERSATION = UUID("01890000-0000-7000-8000-0000000000cd")


def item(*digests: bytes) -> str:
    parts = [InputImage(content=content_of(digest)) for digest in digests]
    text = InputText(f'"content":"{content_of(bytes([9] * 32))}"')
    return encode_item(Message("msg_1", "completed", "user", [text, *parts])).decode()


@pytest.mark.parametrize(
    ("payload", "uses", "found"),
    [
        (item(), set(), []),
        (item(ONE, TWO, ONE), {("msg_1", ONE), ("msg_1", TWO)}, []),
        (item(ONE), set(), [LOST]),
        (
            item(),
            {("msg_1", TWO)},
            [LEFT],
        ),
        ('{"type":"message","content":"sha256:"', set(), []),
    ],
)
def test_every_picture_that_an_item_names_is_kept_for_it_and_no_other(
    payload: str, uses: set[tuple[str, bytes]], found: list[str]
) -> None:
    assert list(check_uses([("msg_1", payload)], uses)) == [("I17", sentence) for sentence in found]


def test_a_finding_says_which_conversation_or_picture_it_is_about() -> None:
    [(_, sentence)] = check_conversation(ConversationImages(CONVERSATION, [("msg_1", item(ONE))], set()))
    assert sentence.startswith(f"of conv_{CONVERSATION.hex}: its item msg_1 names sha256:00")
    assert check_image(UnsoundImage("t", ONE, "unused"))[1].endswith("is kept, but no item names it.")
    assert "other bytes" in check_image(UnsoundImage("t", ONE, "damaged"))[1]
