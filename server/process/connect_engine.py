"""`connect`: the engine over servers of vLLM or llama.cpp, from the settings."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.config import ModelRefused
from engine.request import Deliver, Engine, OnEngineDeath
from server.configuration.setting_groups.engine import REMOTE_ENGINES
from server.configuration.settings import Config
from server.errors import ConfigError


def check_engine_settings(config: Config) -> None:
    """Raises ConfigError for settings of the engine that contradict each other."""
    remote = config.engine in REMOTE_ENGINES
    if remote and config.engine_url is None:
        raise ConfigError(f"engine {config.engine} needs engine-url, such as http://127.0.0.1:8001.")
    if not remote and config.engine_url is not None:
        raise ConfigError(f"engine-url is for engine {' or '.join(REMOTE_ENGINES)}, not {config.engine}.")
    if remote and config.adapters is not None:
        raise ConfigError("adapters are loaded by the servers at engine-url, not here.")


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
    from engine.remote.model_folder import read_model_folder
    from engine.remote.remote_engine import RemoteEngine
    from engine.remote.vllm_protocol import VllmProtocol

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
