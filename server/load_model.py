"""The model that a server serves: its folder, its name, its engine and its dialect."""

from collections.abc import Callable
from pathlib import Path

from engine.messages import Deliver, Engine, OnDead
from server.config import Config
from server.dialects.pick import pick
from server.errors import ConfigError
from server.locations import demo_model_folder
from server.runs.admit import Served


def model_folder(config: Config) -> Path:
    folder = config.model or demo_model_folder()
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json.")
    return folder.resolve()


def load_model(config: Config, deliver: Deliver, say: Callable[[str], None], on_dead: OnDead) -> Served:
    """Loads what the settings name. Raises ConfigError, with a sentence, if it cannot be served."""
    folder = model_folder(config)
    if config.engine == "scripted":
        engine = _scripted(config, folder, deliver, on_dead)
    else:
        engine = _real(config, folder, deliver, say, on_dead)
    try:
        dialect = pick(folder, engine.capabilities.stop_ids)
    except (OSError, ValueError) as error:
        engine.close(drain=False)
        raise ConfigError(str(error)) from error
    return Served(name=config.model_name or folder.name, engine=engine, dialect=dialect)


def _real(
    config: Config, folder: Path, deliver: Deliver, say: Callable[[str], None], on_dead: OnDead
) -> Engine:
    from engine.config import EngineConfig, ModelRefused
    from engine.engine import load

    wanted = EngineConfig(
        model=folder,
        device=config.device,
        dtype=config.dtype,
        kv_memory=config.kv_memory,
        token_budget=config.token_budget,
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        max_of_share=config.max_of_tenant,
        hang_seconds=config.hang_seconds,
        torch_threads=config.torch_threads,
    )
    try:
        return load(wanted, deliver, say, on_dead)
    except (ModelRefused, OSError, ValueError) as error:
        raise ConfigError(f"{folder} cannot be served: {error}") from error


def _scripted(config: Config, folder: Path, deliver: Deliver, on_dead: OnDead) -> Engine:
    from server.scripted_model import scripted_engine

    return scripted_engine(config, folder, deliver, on_dead)
