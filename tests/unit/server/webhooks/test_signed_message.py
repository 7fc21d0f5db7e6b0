"""Events as the official client reads them."""

import base64
import time
from typing import Any
from uuid import UUID

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from server.protocol.webhook_objects import EVENT_TYPES
from server.webhooks.signed_message import event_body, make_secret, message_headers, sign

EVENT = UUID("01890000-0000-7000-8000-0000000000e0")
DELIVERY = UUID("01890000-0000-7000-8000-0000000000d0")
RESPONSE = UUID("01890000-0000-7000-8000-0000000000ab")
BODY = event_body(EVENT, "response.completed", 1750287018, RESPONSE)


def client(secret: str) -> OpenAI:
    return OpenAI(api_key="none", webhook_secret=secret)


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_the_official_client_unwraps_an_event_of_each_type(event_type: str) -> None:
    secret = make_secret()
    body = event_body(EVENT, event_type, 1750287018, RESPONSE)
    event: Any = client(secret).webhooks.unwrap(
        body, message_headers(DELIVERY, int(time.time()), body, [secret])
    )
    assert (event.type, event.id, event.object) == (event_type, f"evt_{EVENT.hex}", "event")
    assert event.created_at == 1750287018
    assert event.data.id == f"resp_{RESPONSE.hex}"


def test_a_message_is_signed_as_standard_webhooks_says() -> None:
    """The secret, message and signature are the example of its specification."""
    secret, message_id = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    signature = sign(secret, message_id, 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_during_a_rotation_the_owner_of_either_secret_accepts_a_message_and_nobody_else() -> None:
    new, old = make_secret(), make_secret()
    headers = message_headers(DELIVERY, int(time.time()), BODY, [new, old])
    for secret in (new, old):
        client(secret).webhooks.verify_signature(BODY, headers)
    with pytest.raises(InvalidWebhookSignatureError):
        client(make_secret()).webhooks.verify_signature(BODY, headers)


def test_a_changed_message_is_refused() -> None:
    secret = make_secret()
    headers = message_headers(DELIVERY, int(time.time()), BODY, [secret])
    for changed in (
        (BODY.replace(b"completed", b"cancelled"), headers),
        (BODY, {**headers, "webhook-id": "wh_other"}),
        (BODY, {**headers, "webhook-timestamp": str(int(time.time()) - 1)}),
        (BODY, message_headers(DELIVERY, int(time.time()) - 600, BODY, [secret])),
    ):
        with pytest.raises(InvalidWebhookSignatureError):
            client(secret).webhooks.verify_signature(*changed)


def test_every_secret_is_another_and_has_256_bits() -> None:
    made = {make_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(base64.b64decode(secret.removeprefix("whsec_"))) for secret in made} == {32}
