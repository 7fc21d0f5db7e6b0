"""Loads a model with transformers, or refuses it: safetensors only, no remote code, no downloads."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)

from engine.attention.paged_attention import NO_ATTENTION, LayerAttentionSpec
from engine.attention.sdpa import configure_sdpa
from engine.config import GGUF_FILE, EngineConfig, ModelRefused, UnsupportedModel
from engine.image_encoder import ImageProcessor, check_encoder
from engine.model.forward_ways import ForwardWay, forward_ways
from engine.model.fused_layers import fuse_layers
from engine.model.prepacked_linear import prepack_weights
from engine.model.quantization import (
    load_options,
    quantization_method,
    refuse_unknown_format,
    refuse_unused_scales,
)
from engine.request import ModelInfo, describe
from engine.vocabulary import Vocabulary, read_vocabulary

log = logging.getLogger(__name__)

LENGTH_DEPENDENT_ROPES = frozenset({"dynamic", "longrope"})
"""RoPE types whose frequencies depend on the longest sequence of the batch, beyond the original context
length. Up to that length they are constant, so the context is limited to it."""


CONTEXT_LENGTHS = (
    "max_position_embeddings",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_positions",
)
UNTOLD_CONTEXT = 2048
"""For models whose positions have no end, such as Bloom and Mamba: what most of them were trained with."""

MAX_IMAGE_TOKENS = {"cpu": 1024, "cuda": 4096}
"""Default of `EngineConfig.max_image_tokens`."""


@dataclass(frozen=True, slots=True)
class LoadedNetwork:
    network: PreTrainedModel
    device: torch.device
    dtype: torch.dtype
    ways: Sequence[ForwardWay]
    """How it may be computed, the fastest way first; the first one is the one that is used."""
    model_info: ModelInfo
    vocabulary: Vocabulary | None
    image_processor: ImageProcessor | None = None
    """None if the model reads text only."""

    @property
    def way(self) -> ForwardWay:
        return self.ways[0]

    @property
    def layers(self) -> Sequence[LayerAttentionSpec]:
        return self.way.layers

    @property
    def specs(self) -> set[LayerAttentionSpec]:
        """The kinds of attention through the paged cache."""
        return set(self.layers) - {NO_ATTENTION}


def load_model(config: EngineConfig, progress: Callable[[str], None]) -> LoadedNetwork:
    """Raises `ModelRefused` for a model that is not supported or cannot be loaded."""
    if config.torch_threads is not None:
        torch.set_num_threads(config.torch_threads)
    device = _choose_device(config)
    configure_sdpa(device)
    progress(f"reading {config.model}")
    hf_config = read_servable_config(config)
    dtype = _choose_dtype(config, hf_config, device)
    progress(f"loading weights as {str(dtype).removeprefix('torch.')} on {device}")
    network, ways = _load_and_probe(config, hf_config, dtype, device, progress)
    if (quantization_method(hf_config) or "").startswith("bitsandbytes"):
        dtype = network.dtype  # the checkpoint's, whatever was asked for
    text_config = network.config.get_text_config()
    model_info = ModelInfo.of_folder(
        text_config.vocab_size,
        read_context_length(text_config),
        {"eos_token_id": getattr(text_config, "eos_token_id", None)},
        {key: value for key, value in vars(network.generation_config).items() if value is not None},
    )
    try:
        vocabulary = read_vocabulary(config.model, model_info.vocab_size)
    except ValueError as error:
        progress(f"grammars are not served: {error}")
        vocabulary = None
    images = _image_processor(config, hf_config, network, progress)
    return LoadedNetwork(network, device, dtype, ways, model_info, vocabulary, images)


def _image_processor(
    config: EngineConfig,
    hf_config: PretrainedConfig,
    network: PreTrainedModel,
    progress: Callable[[str], None],
) -> ImageProcessor | None:
    if not hasattr(getattr(network, "model", None), "get_image_features"):
        return None
    try:
        default = MAX_IMAGE_TOKENS["cuda" if network.device.type == "cuda" else "cpu"]
        processor = ImageProcessor.load(config.model, hf_config, config.max_image_tokens or default)
        progress("checking that a picture can be encoded")
        check_encoder(network, processor)
    except Exception as error:  # noqa: BLE001 - whatever a folder's processor raises, it can answer text
        progress(f"pictures are not served: {_say(error)}")
        return None
    return processor


def _load_and_probe(
    config: EngineConfig,
    hf_config: PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[str], None],
) -> tuple[PreTrainedModel, list[ForwardWay]]:
    *others, last = load_options(hf_config, device)  # a function each, so that no two are in memory
    for options in others:
        try:
            return _load_with(config, hf_config, dtype, device, options, progress)
        except ModelRefused as error:
            log.warning("the weights are read in another way, because in the first: %s", error)
    return _load_with(config, hf_config, dtype, device, last, progress)


def _load_with(
    config: EngineConfig,
    hf_config: PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    options: Mapping[str, Any],
    progress: Callable[[str], None],
) -> tuple[PreTrainedModel, list[ForwardWay]]:
    network = _read_weights(config, hf_config, dtype, options)
    if "device_map" not in options:
        network.to(device=device)  # type: ignore[call-arg]  # its wrapper hides the keyword
    if device.type == "cpu":
        if quantization_method(hf_config) == "fp8":
            network.to(dtype=dtype)  # type: ignore[call-arg]  # transformers has written it out in bfloat16
        prepack_weights(network, exact=config.exact != "off")
    progress("checking that every layer attends as it should")
    ways = forward_ways(network, _say)
    if config.exact == "on":
        ways = [way for way in ways if way.kind == "packed" or way.whole_prompts]
        ways[0].use(network)
    if not config.adapters:
        fuse_layers(network, read_context_length(network.config.get_text_config()))
    return network, ways


def _choose_device(config: EngineConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelRefused("There is no CUDA device here.")
    if config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _choose_dtype(config: EngineConfig, hf_config: PretrainedConfig, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        return getattr(torch, config.dtype)  # type: ignore[no-any-return]
    own = hf_config.get_text_config().dtype or hf_config.dtype
    if device.type == "cuda":
        return own if isinstance(own, torch.dtype) else torch.float32
    # On a CPU without instructions for it, bfloat16 is slower than float32, and less precise.
    features = torch.cpu.get_capabilities()
    is_fast = features.get("avx512_bf16") or features.get("amx_bf16")
    return torch.bfloat16 if own == torch.bfloat16 and is_fast else torch.float32


def read_servable_config(config: EngineConfig) -> PretrainedConfig:
    """The model's configuration. Raises `ModelRefused` for a model that is refused whatever its weights."""
    hf_config = _read_hf_config(config)
    text_config = hf_config.get_text_config()
    if getattr(text_config, "is_encoder_decoder", False):
        name = text_config.model_type
        raise UnsupportedModel(f"{name} is an encoder and a decoder; only decoders are served.")
    refuse_unknown_format(config.model, hf_config)
    return hf_config


def _read_hf_config(config: EngineConfig) -> PretrainedConfig:
    if not (config.model / "config.json").is_file():
        raise ModelRefused(f"There is no model in {config.model}: it has no config.json.")
    if not (gguf := _gguf_file(config.model)):
        _refuse_unknown_architecture(config.model)
    try:
        hf_config: PretrainedConfig = AutoConfig.from_pretrained(
            config.model, trust_remote_code=False, local_files_only=True, **gguf
        )
        hf_config.get_text_config()  # raises for several text models
    except Exception as error:
        raise UnsupportedModel(f"Its config.json is not understood: {_say(error)}") from error
    return hf_config


def _gguf_file(folder: Path) -> dict[str, str]:
    """The argument of `from_pretrained` for weights in GGUF, which are written out in full."""
    return {"gguf_file": GGUF_FILE} if (folder / GGUF_FILE).is_file() else {}


def _refuse_unknown_architecture(model: Path) -> None:
    """Raises `ModelRefused` for a `model_type` that the installed transformers does not have.

    transformers' own sentence advises to run code from the folder, or to upgrade what is pinned here.
    """
    try:
        model_type = json.loads((model / "config.json").read_bytes()).get("model_type")
    except (ValueError, AttributeError) as error:
        raise ModelRefused("Its config.json is not a JSON object.") from error
    if not isinstance(model_type, str):
        raise ModelRefused("Its config.json has no model_type, so its architecture is not known.")
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModel(
            f"Its architecture, {model_type}, is not one of transformers {transformers.__version__}, and "
            "code in a model's folder is never run."
        )


def _auto_class(hf_config: PretrainedConfig) -> Any:
    """The class that reads the checkpoint: of a model with a vision tower, the whole model."""
    is_causal_lm = type(hf_config) in MODEL_FOR_CAUSAL_LM_MAPPING
    reads_images = type(hf_config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if reads_images and not is_causal_lm else AutoModelForCausalLM


def _read_weights(
    config: EngineConfig, hf_config: PretrainedConfig, dtype: torch.dtype, options: Mapping[str, Any]
) -> PreTrainedModel:
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = _auto_class(hf_config).from_pretrained(
            config.model,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that they are reported; raising, it names none
            **_gguf_file(config.model),
            **options,
        )
    except Exception as error:
        raise UnsupportedModel(f"Its weights cannot be read: {_say(error)}") from error
    network: PreTrainedModel = loaded[0]
    report: dict[str, Any] = loaded[1]
    _refuse_wrong_weights(report)
    refuse_unused_scales(config.model, report["unexpected_keys"])
    network.eval()  # type: ignore[no-untyped-call]
    return network


_PROBLEMS = (
    ("missing_keys", "Its weights lack tensors of its architecture"),
    ("mismatched_keys", "Tensors of its weights have other shapes than its config.json says"),
    ("error_msgs", "Its weights do not fit its architecture"),
)
"""Faults of a checkpoint that transformers only warns of, before it initializes such weights randomly."""


def _refuse_wrong_weights(report: Mapping[str, Any]) -> None:
    for problem, sentence in _PROBLEMS:
        entries = sorted(str(entry[0] if isinstance(entry, tuple) else entry) for entry in report[problem])
        if entries:
            more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
            raise ModelRefused(
                f"{sentence}: {entries[0]}{more}. The download is not complete, or config.json is another "
                "model's."
            )


def read_context_length(hf_config: PretrainedConfig) -> int:
    """The longest context in tokens; `UNTOLD_CONTEXT` where the configuration does not say."""
    lengths = (getattr(hf_config, name, None) for name in CONTEXT_LENGTHS)
    length: int = next((each for each in lengths if isinstance(each, int) and each > 0), UNTOLD_CONTEXT)
    ropes = getattr(hf_config, "rope_parameters", None) or {}
    # Either one set of parameters, or one per layer type.
    for rope in ropes.values() if all(isinstance(r, dict) for r in ropes.values()) else (ropes,):
        if rope and rope.get("rope_type") in LENGTH_DEPENDENT_ROPES:
            length = min(length, rope.get("original_max_position_embeddings", length))
    return length


_MISLEADING = ("trust_remote_code", "http", "upgrade", "huggingface", "Hugging Face", "`from_")
"""Parts of transformers' sentences that advise to run code, fetch files or upgrade: not done here."""


def _say(error: Exception) -> str:
    """The error in one line, its type unless the message is clear; misleading advice is logged."""
    text = describe(error, 1000)
    if any(mark in text for mark in _MISLEADING):
        log.warning("transformers says: %s", text)
        return f"transformers raises {type(error).__name__}, in words that the log has."
    if isinstance(error, OSError | ValueError | ImportError | ModelRefused):
        text = text.removeprefix(f"{type(error).__name__}: ")
    return text if text.endswith(".") else f"{text}."
