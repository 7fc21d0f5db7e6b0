"""`with_model`: the settings with the engine chosen and the model as a folder of this machine.

A hub's model is fetched, a GGUF file's tokenizer and template are written out, and a server that is named by
its URL is asked what it is.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.config import GGUF_FILE, ModelRefused
from engine.remote.gguf_folder import write_folder
from server.configuration.model_source import EngineUrl, HubModel, read_source
from server.configuration.setting_groups import REMOTE_ENGINES
from server.configuration.settings import Config
from server.configuration.shipped_files import model_folder
from server.configuration.unusable_models import check_files
from server.errors import ConfigError
from server.process.model.engine_choice import choose_engine, this_machine
from server.process.model.running_server import ask_server


def with_model(config: Config, say: Callable[[str], None]) -> Config:
    """The settings with an engine that is not `auto`; of a model of a hub, `model` is its folder in the cache
    and `model_name` its id.

    Raises ConfigError if the model is neither here nor to be had, or if no engine runs it.
    """
    config = _with_server(config)
    source = None if config.model is None else read_source(config.model)
    file = _gguf_file(config, source)
    config, why = _with_engine(config, is_gguf=file is not None)
    if isinstance(source, HubModel):
        # Imported for ids only: it brings an HTTP client.
        from server.process.model.model_download import download

        config = replace(config, model_name=config.model_name or source.repository)
        with_weights = config.engine != "scripted" and (
            config.engine not in REMOTE_ENGINES or config.engine_url is None
        )
        path = download(source, say, with_weights=with_weights)
        if source.quantization is None:
            check_files(model_folder(replace(config, model=path)), with_weights=with_weights)
            config = replace(config, model=path)
        else:
            file = path
    if why:
        say(f"The engine is {config.engine}: {why}.")
    reads = config.engine == "llama-server" or (config.engine == "model" and this_machine().reads_gguf)
    if file is None or not reads:
        return config
    if config.model is not None and not isinstance(source, HubModel) and config.model != file:
        return replace(config, gguf=file)  # the folder is named beside the file
    folder = Path(tempfile.mkdtemp(prefix="holdfast-gguf-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        write_folder(file, folder)
        (folder / GGUF_FILE).symlink_to(file.resolve())
    except ModelRefused as error:
        raise ConfigError(str(error)) from error
    return replace(config, model=folder, gguf=file, model_name=config.model_name or file.stem)


def _with_server(config: Config) -> Config:
    """The settings with the engine of the server that they name by its URL, and with its model."""
    source = None if config.model is None else read_source(config.model)
    if isinstance(source, EngineUrl):
        config = replace(config, model=None, engine_url=source.url)
    elif config.engine != "auto" or config.engine_url is None:
        return config
    server = ask_server(str(config.engine_url), config.engine_api_key, config.engine_ca)
    model = config.model
    if isinstance(source, EngineUrl):
        model = Path(server.root)
        if isinstance(read_source(model), Path) and not model.exists():
            raise ConfigError(
                f"The server at {source.url} runs {server.root}, which is not on this machine: name a folder "
                f"with its tokenizer, chat template and config.json, as in `serve FOLDER --engine-url "
                f"{source.url}`."
            )
    return replace(config, engine=server.engine, model=model)


def _gguf_file(config: Config, source: object) -> Path | None:
    """The GGUF file of this machine that is named; for a hub's, before it is there, its name."""
    if config.gguf is not None:
        return config.gguf
    if isinstance(source, HubModel) and source.quantization is not None:
        return Path(source.repository)
    return source if isinstance(source, Path) and source.suffix == ".gguf" and source.is_file() else None


def _with_engine(config: Config, *, is_gguf: bool) -> tuple[Config, str]:
    """The settings with an engine, and the reason for it; an empty one if it was set."""
    why = ""
    if config.engine == "auto" and config.model is None and not is_gguf:
        return replace(config, engine="model"), why  # the demo model
    if config.engine == "auto":
        engine, why = choose_engine(this_machine(), is_gguf=is_gguf, has_adapters=config.adapters is not None)
        config = replace(config, engine=engine)
    if config.engine in REMOTE_ENGINES and config.engine_url is None:
        if shutil.which(config.engine) is None:
            raise ConfigError(
                f"{config.engine} is not on the PATH: install it, or start it elsewhere and set "
                "engine-url, such as http://127.0.0.1:8001."
            )
        if config.engine == "llama-server" and not is_gguf:
            raise ConfigError(
                "llama-server runs GGUF files: name one as the model, or beside its folder by gguf, or set "
                "engine-url to a server that runs."
            )
    return config, why
