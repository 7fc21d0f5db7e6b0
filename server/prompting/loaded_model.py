"""`LoadedModel`: the engine and the model format of this process, and its limit on long prompts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.fair_limit import FairLimit
from engine.request import Engine, ModelInfo
from engine.vocabulary import Vocabulary
from server.errors import Overloaded, TooManyRequests
from server.input_images.image_reader import ImageReader, TenantImages
from server.model_formats.interface import ModelFormat
from server.protocol.input_images import ImageSource
from server.sealing.cipher import Seal

LONG_CHARACTERS = 65_536
"""Characters; longer texts need a slot to be tokenized."""
ITEM_CHARACTERS = 64
"""Characters as which an item counts beside its text: a template's work for it takes as long as theirs."""
MAX_CONCURRENT = 2
MAX_WAITING = 16
"""Long texts of one tenant that may wait for a slot."""
MAX_WAIT_SECONDS = 30.0
_LONG = "long prompts"
"""How long a request waits for a slot."""


class LongPromptLimit:
    """Slots for long texts that are tokenized, or divided, at a time, fair between tenants. Thread-safe.

    That takes memory and CPU time in proportion to the text and its items. Short texts, which nearly all are,
    do not wait.
    """

    def __init__(self) -> None:
        self._limit = FairLimit(MAX_CONCURRENT)

    @contextmanager
    def slot(self, tenant: str, characters: int) -> Iterator[None]:
        """A slot for the duration of the block, if the text is long. Raises TooManyRequests or Overloaded."""
        if characters <= LONG_CHARACTERS:
            yield
            return
        if self._limit.waiting(tenant) >= MAX_WAITING:
            raise TooManyRequests(
                f"You may have {MAX_WAITING} long prompts waiting at a time; try again later.", limit=_LONG
            )
        slot = self._limit.hold(tenant, MAX_WAIT_SECONDS)
        try:
            slot.__enter__()
        except TimeoutError:
            raise Overloaded(
                "The server has more long prompts than it can read; try again later.", limit=_LONG
            ) from None
        try:
            yield
        finally:
            slot.__exit__(None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """The model that this process serves."""

    name: str
    engine: Engine
    model_format: ModelFormat
    images: ImageReader | None = None
    """Reads the pictures of requests; None for a model that reads text only."""
    vocabulary: Vocabulary | None = None
    """The text of its tokens; without it no log probabilities or token dumps are sent."""
    seal: Seal = field(default_factory=Seal.of_this_process)
    """Seals the content that clients keep for the server."""
    long_prompts: LongPromptLimit = field(default_factory=LongPromptLimit)
    """Bounds the long prompts that are tokenized at a time."""
    max_tool_calls: int | None = None
    """The most tool calls that the server makes in one response; None for no limit."""
    summarizes_reasoning: bool = True
    """Whether requests for a reasoning summary get the reasoning itself as one."""
    trusts_templates: bool = False
    """Whether a request may bring its own chat template."""
    model_info: ModelInfo = field(init=False)
    """The engine's, which does not change."""
    names: tuple[str, ...] = field(init=False)
    """The values of `model` that requests may have: the model and its adapters."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_info", self.engine.model_info)
        object.__setattr__(self, "names", (self.name, *self.model_info.adapters))

    def weights_of(self, name: str) -> str | None:
        """The digest of the weights that generate for one of `names`; None if the engine does not know it.

        Equal digests are the same weights, in whichever process.
        """
        return self.model_info.weights.get("" if name == self.name else name)

    def image_source(self, tenant: str) -> ImageSource | None:
        """What reads a tenant's pictures, for `input_images.SOURCE`; None if the model reads text only."""
        return None if self.images is None else TenantImages(self.images, tenant, self.engine)
