"""`LoadedModel`: the engine and the model format of this process, and its limit on long prompts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.request import Engine, ModelInfo
from engine.vocabulary import Vocabulary
from server.input_images.image_reader import ImageReader, TenantImages
from server.limits.long_prompts import LongPromptLimit
from server.model_formats.model_format import ModelFormat
from server.protocol.input_images import ImageSource
from server.sealing.cipher import Seal


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

    weights: Mapping[str, str] = field(init=False)
    """The digests of the weights that generate for `names`, as far as the engine knows them. Equal digests
    are the same weights, in whichever process."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_info", self.engine.model_info)
        weights = {adapter or self.name: digest for adapter, digest in self.model_info.weights.items()}
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "names", (self.name, *self.model_info.adapters))

    def image_source(self, tenant: str) -> ImageSource | None:
        """The reader of a tenant's pictures, for `input_images.SOURCE`; None if the model reads text only."""
        return None if self.images is None else TenantImages(self.images, tenant, self.engine)
