"""Items that change what later responses of a conversation are asked for, and that no model reads."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from server.protocol.responses.request import Effort


class CompletedItem(msgspec.Struct, frozen=True, tag_field="type"):
    id: str

    @property
    def status(self) -> Literal["completed"]:
        """The status in the item's row; OpenAI's items of these types have none."""
        return "completed"


class AdditionalTools(CompletedItem, frozen=True, tag="additional_tools"):
    """Tools that the conversation has from this item on."""

    tools: list[dict[str, Any]]
    """The tools as declared; tools of supported types with all of their fields."""
    role: Literal["developer"] = "developer"


class ReasoningUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: Effort | UnsetType | None = UNSET
    """None is the model's default."""


class ConfigurationUpdate(CompletedItem, frozen=True, tag="configuration_update"):
    """Settings that the conversation has from this item on."""

    reasoning: ReasoningUpdate | UnsetType = UNSET
    text: dict[str, Any] | UnsetType = UNSET
    """`{"format": …}`, a `TextFormat`."""


SettingsItem = AdditionalTools | ConfigurationUpdate
