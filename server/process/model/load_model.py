"""Loads the configured model: folder, name, adapters, format, vocabulary and engine, here or elsewhere."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import DecodeName, EngineConfig, ModelRefused, UnsupportedModel
from engine.request import Deliver, Engine, OnEngineDeath
from engine.vocabulary import Vocabulary, read_vocabulary
from server.configuration.environment import tiktoken_folders
from server.configuration.setting_groups import REMOTE_ENGINES
from server.configuration.settings import Config
from server.configuration.shipped_files import model_folder, name_of
from server.configuration.unusable_models import OTHER_ENGINE, check_files, check_template
from server.errors import ConfigError
from server.input_images.image_reader import ImageReader
from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.chat_template.template_check import contradictions
from server.model_formats.harmony.vocabulary import VocabularyPlaces
from server.model_formats.model_format import ModelFormat
from server.model_formats.select_format import load_model_format
from server.outbound_http.allowed_addresses import read_allowed
from server.prompting.served_model import LoadedModel

log = logging.getLogger("holdfast.serve")


def load_model(
    config: Config,
    deliver: Deliver,
    say: Callable[[str], None],
    on_dead: OnEngineDeath,
    trace_parent_of: Callable[[str], str | None] = lambda _request_id: None,
) -> LoadedModel:
    """Loads the configured model. Raises ConfigError if it cannot be served."""
    folder = model_folder(config)
    check_engine_settings(config)
    check_files(folder, with_weights=config.engine in ("auto", "model"))
    check_template(folder, config.chat_template)
    if config.engine == "scripted":
        from server.process.model.scripted_model import scripted_engine

        engine = scripted_engine(config, folder, deliver, on_dead)
    elif config.engine in REMOTE_ENGINES:
        engine = connect(config, folder, deliver, say, on_dead, trace_parent_of=trace_parent_of)
    else:
        engine = _load_checkpoint(config, folder, deliver, say, on_dead)
    model_info = engine.model_info
    try:
        model_format = read_format(
            config,
            folder,
            model_info.stop_ids,
            image_placeholder=model_info.image_placeholder,
            image_token_id=model_info.image_token_id,
            grammar_token_ids=model_info.grammar_token_ids,
        )
        if isinstance(model_format, ChatTemplateFormat):
            _check_format(model_format, config, say)
        images = _image_reader(config) if model_info.image_placeholder else None
    except (OSError, ValueError, ConfigError) as error:
        engine.close(drain=False)
        raise ConfigError(str(error)) from error
    return LoadedModel(
        name=model_name(config),
        engine=engine,
        model_format=model_format,
        images=images,
        vocabulary=_vocabulary(folder, model_info.vocab_size),
        max_tool_calls=config.max_hosted_calls,
        summarizes_reasoning=config.reasoning_summary == "reasoning",
        trusts_templates=config.trust_request_chat_template == "on",
    )


def read_format(
    config: Config, folder: Path, stop_ids: frozenset[int] = frozenset(), **of_engine: Any
) -> ModelFormat:
    """The configured format of the model in `folder`. Arguments and errors are `load_model_format`'s."""
    return load_model_format(
        folder,
        stop_ids,
        VocabularyPlaces(*tiktoken_folders()),
        tool_parser=config.tool_parser,
        chat_template=config.chat_template,
        **of_engine,
    )


def _image_reader(config: Config) -> ImageReader:
    """Raises ConfigError for malformed hosts."""
    try:
        allowed = read_allowed(config.image_hosts) if config.image_hosts else None
    except ValueError as error:
        raise ConfigError(f"image-hosts: {error}.") from error
    return ImageReader(config.max_image_pixels, allowed)


def _check_format(model_format: ChatTemplateFormat, config: Config, say: Callable[[str], None]) -> None:
    """Says what is not served with this template. Raises ConfigError if answers would be garbled."""
    if model_format.is_plain:
        say(
            "This model has no chat template, as base models have none: messages are written as plain text, "
            "and answers may be poor. The setting chat-template takes a file with one; /v1/completions needs "
            "none."
        )
    elif model_format.describes_tools:
        say("The chat template writes no tools, so they are described in the system message.")
    unread = contradictions(model_format)
    if "calls" in unread and config.tool_parser is None:
        say(
            f"The chat template writes calls of tools otherwise than the format {model_format.call_format} "
            "reads them, so requests with tools are refused; the setting tool-parser chooses another format."
        )
        model_format.refuse_tools()
    if garbled := [part for part in unread if part != "calls"]:
        sentence = f"The chat template writes {' and '.join(garbled)} with marks that no format here reads"
        if config.template_check == "refuse":
            raise ConfigError(
                f"{sentence}, so answers would be garbled. The setting chat-template takes a file with "
                "another template; template-check=warn serves the model as it is."
            )
        say(f"{sentence}: they are a part of the answers' text.")


def _vocabulary(folder: Path, size: int) -> Vocabulary | None:
    try:
        return read_vocabulary(folder, size)
    except ValueError:
        return None  # the tokenizer's tokens have no bytes of their own, so logprobs are unavailable


def model_name(config: Config) -> str:
    """The model's name for clients."""
    return config.model_name or name_of(model_folder(config))


def read_adapters(config: Config) -> tuple[tuple[str, Path], ...]:
    """The setting's `name=folder,…` as pairs. Raises ConfigError."""
    text = config.adapters or ""
    pairs = [entry.strip().partition("=") for entry in text.split(",") if entry.strip()]
    for name, equals, folder in pairs:
        if not (name and equals and folder):
            raise ConfigError(f"adapters must be name=folder, with commas between, not {text!r}.")
        if name == model_name(config):
            raise ConfigError(f"An adapter cannot be called {name}, which is the model's own name.")
        if not (Path(folder) / "adapter_config.json").is_file():
            raise ConfigError(f"{folder} is not an adapter's folder: it has no adapter_config.json.")
    return tuple((name, Path(folder).resolve()) for name, _, folder in pairs)


DECODES: dict[str, DecodeName] = {"auto": "auto", "on": "graphs", "off": "eager"}
PIPELINED = {"auto": None, "on": True, "off": False}


def engine_config(config: Config, folder: Path, adapters: tuple[tuple[str, Path], ...]) -> EngineConfig:
    """The settings of the engine of this process. Raises ValueError."""
    return EngineConfig(
        model=folder,
        adapters=adapters,
        device=config.device,
        dtype=config.dtype,
        kv_memory=config.kv_memory,
        token_budget=config.token_budget,
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        max_per_key=config.max_of_tenant,
        max_image_tokens=config.max_image_tokens,
        hang_seconds=config.hang_seconds,
        torch_threads=config.torch_threads,
        attention=config.attention,
        hub_kernel=config.hub_kernel,
        block_size=config.block_size,
        decode=DECODES[config.graphs],
        pipelined=PIPELINED[config.ahead],
        prompt_lookup=config.prompt_lookup,
        exact=config.exact,
    )


@contextmanager
def refused_without_torch() -> Iterator[None]:
    """Raises ConfigError where the libraries of models are not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise ConfigError(
            f"{error.name} is not installed, so this process cannot run a model: install holdfast in place "
            "of holdfast-server, or set engine to one of another process."
        ) from error


def _load_checkpoint(
    config: Config, folder: Path, deliver: Deliver, say: Callable[[str], None], on_dead: OnEngineDeath
) -> Engine:
    from huggingface_hub import constants

    from engine.core.local_engine import load

    adapters, assets = read_adapters(config), Path(constants.HF_ASSETS_CACHE)
    try:
        requested = replace(engine_config(config, folder, adapters), passed_checks=assets / "holdfast")
        with refused_without_torch():
            return load(requested, deliver, say, on_dead)
    except UnsupportedModel as error:
        raise ConfigError(f"{folder} cannot be served: {error} {OTHER_ENGINE}") from error
    except (ModelRefused, OSError, ValueError) as error:
        raise ConfigError(f"{folder} cannot be served: {error}") from error


def check_engine_settings(config: Config) -> None:
    """Raises ConfigError for settings of the engine that contradict each other."""
    remote = config.engine in REMOTE_ENGINES
    if config.engine_args is not None and (not remote or config.engine_url is not None):
        raise ConfigError(
            "engine-args are for an engine that is started here: vllm or llama-server, without engine-url."
        )
    if not remote and config.engine_url is not None:
        raise ConfigError(f"engine-url is for engine {' or '.join(REMOTE_ENGINES)}, not {config.engine}.")
    if config.exact == "on" and config.engine not in ("auto", "model"):
        raise ConfigError(f"exact=on is for engine model: what {config.engine} computes is not checked here.")
    if remote and config.adapters is not None:
        raise ConfigError(
            "adapters are loaded by vLLM, not here: see --lora-modules of vLLM, and --engine-args."
        )


def connect(
    config: Config,
    folder: Path,
    deliver: Deliver,
    say: Callable[[str], None],
    on_dead: OnEngineDeath,
    start_seconds: float | None = None,
    trace_parent_of: Callable[[str], str | None] = lambda _request_id: None,
) -> Engine:
    """Waits until a first server can be used, by default for half an hour. Raises ConfigError if none can."""
    # Parts that other engines do without.
    from engine.remote.engine_protocol import CallFault, EngineMismatch, EngineProtocol
    from engine.remote.fleet import RemoteConfig
    from engine.remote.llama_protocol import LlamaProtocol
    from engine.remote.remote_engine import RemoteEngine
    from engine.remote.vllm_protocol import VllmProtocol
    from engine.remote.vocabulary_files import read_model_folder

    assert config.engine_url is not None
    try:
        model_folder = read_model_folder(folder, config.engine_model)
    except ModelRefused as error:
        raise ConfigError(f"{folder} cannot be served: {error}") from error
    settings = RemoteConfig(
        urls=config.engine_url,
        api_key=config.engine_api_key,
        ca_file=config.engine_ca,
        max_running=config.running_limit,
        max_waiting=config.max_waiting,
        max_per_key=config.max_of_tenant,
        silence_timeout=config.hang_seconds,
        outage_seconds=config.engine_outage_seconds,
        trace_parent_of=trace_parent_of,
    )
    if start_seconds is not None:
        settings = replace(settings, start_seconds=start_seconds)
    protocol: EngineProtocol = VllmProtocol()
    if config.engine == "llama-server":
        protocol = LlamaProtocol(model_folder.model_info.vocab_size)
    try:
        engine = RemoteEngine(settings, protocol, model_folder, deliver, on_dead)
        engine.start(say)
    except (OSError, ValueError, CallFault, EngineMismatch) as error:
        raise ConfigError(f"engine-url {config.engine_url}: {error}.") from error
    return engine


def log_engine(what: str, engine: Engine) -> None:
    """Logs the engine's figures at its start or its end."""
    info, stats = engine.model_info, engine.stats()
    log.info(
        "the engine %s: context %d tokens, %d KV blocks, attention %s, decode %s; %d steps, %d prompt tokens "
        "(%d cached), %d generated, %d preemptions, %d deaths",
        what,
        info.context_length,
        stats.kv_blocks_total,
        info.attention or "-",
        info.decode or "-",
        stats.steps,
        stats.prompt_tokens,
        stats.cached_tokens,
        stats.tokens,
        stats.preemptions,
        stats.deaths,
    )
