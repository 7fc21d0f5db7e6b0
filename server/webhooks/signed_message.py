"""Makes the message about a response's end: OpenAI's event, Standard Webhooks' signed headers. Pure."""

import base64
import hmac
import secrets
from collections.abc import Sequence
from uuid import UUID

import msgspec

from server.protocol.ids import event_id, response_id, webhook_id
from server.version import VERSION

SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix
SECRET_BYTES = 32
"""Standard Webhooks has 24 to 64."""


def make_secret() -> str:
    """A random secret, in the form in which receivers are given it."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def event_body(event: UUID, event_type: str, created_at: int, response: UUID) -> bytes:
    """The JSON of an event. `created_at` is the Unix time of the response's end."""
    return msgspec.json.encode(
        {
            "id": event_id(event),
            "object": "event",
            "created_at": created_at,
            "type": event_type,
            "data": {"id": response_id(response)},
        }
    )


def message_headers(delivery: UUID, sent_at: int, body: bytes, signing: Sequence[str]) -> dict[str, str]:
    """The headers of an attempt at the Unix time `sent_at`, signed with each of the secrets.

    `webhook-id` is the same in every attempt, so that receivers can tell repetitions.
    """
    message_id = webhook_id(delivery)
    return {
        "content-type": "application/json",
        "user-agent": f"Holdfast/{VERSION} (webhooks)",
        "webhook-id": message_id,
        "webhook-timestamp": str(sent_at),
        "webhook-signature": " ".join(sign(secret, message_id, sent_at, body) for secret in signing),
    }


def sign(secret: str, message_id: str, sent_at: int, body: bytes) -> str:
    """The signature of a message, `v1,` and base64 of HMAC-SHA256."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.digest(key, f"{message_id}.{sent_at}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"
