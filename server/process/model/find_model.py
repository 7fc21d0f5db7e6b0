"""`with_model`: the settings with the engine chosen and the model as a folder of this machine.

A hub's model is fetched, a GGUF file's tokenizer and template are written out, and a server that is named by
its URL is asked which engine and model it runs. Where the setting `engine` is `auto`, the model and the
machine decide.
"""

import atexit
import json
import shutil
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from engine.config import GGUF_FILE, ModelRefused
from engine.remote.gguf_folder import write_folder
from server.configuration.model_source import EngineUrl, HubModel, read_source
from server.configuration.setting_groups import REMOTE_ENGINES, EngineName
from server.configuration.settings import Config
from server.configuration.shipped_files import model_folder
from server.configuration.unusable_models import check_files
from server.errors import ConfigError


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


class Machine(NamedTuple):
    """The parts of this machine on which the choice of an engine depends."""

    has_gpu: bool
    programs: frozenset[str]
    """The engines whose programs, of the same names, are on the PATH."""
    reads_gguf: bool = False
    """transformers and what it reads GGUF files with are installed."""


def this_machine() -> Machine:
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()
    programs = frozenset(name for name in REMOTE_ENGINES if shutil.which(name))
    return Machine(has_gpu, programs, all(map(find_spec, ("transformers", "gguf", "accelerate"))))


def choose_engine(machine: Machine, *, is_gguf: bool, has_adapters: bool = False) -> tuple[EngineName, str]:
    """The engine and the reason as a clause. Raises ConfigError for a model that none here runs."""
    if is_gguf:
        if "llama-server" in machine.programs:
            return "llama-server", "the model is a GGUF file"
        if machine.reads_gguf:
            return "model", "without llama-server, transformers reads the GGUF file, which takes minutes"
        raise ConfigError(
            "A GGUF file is run by llama.cpp's llama-server, which is not on the PATH: install it, or start "
            "it elsewhere and set --engine llama-server and --engine-url (docs/engines.md). A small one this "
            "process runs, too, once pip install gguf accelerate has been done."
        )
    if machine.has_gpu and "vllm" in machine.programs and not has_adapters:
        return "vllm", "this machine has a GPU, and vLLM is installed"
    if has_adapters:
        return "model", "it loads the adapters"
    if machine.has_gpu:
        return "model", "vLLM, which is faster on a GPU, is not on the PATH"
    return "model", "there is no GPU"


SECONDS = 10.0
MAX_BYTES = 16 * 2**20


class RunningServer(NamedTuple):
    engine: EngineName
    root: str
    """The model as the server was started with it: a path, or the id of a hub's model."""


def ask_server(url: str, key: str | None = None, ca_file: Path | None = None) -> RunningServer:
    """Raises ConfigError if no server of vLLM or llama.cpp answers there."""
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")) or "," in base:
        raise ConfigError(f"engine-url {url} names no single server: set engine to vllm or llama-server.")
    try:
        properties = _get(f"{base}/props", key, ca_file)
        if properties is not None and isinstance(path := properties.get("model_path"), str):
            return RunningServer("llama-server", path)
        if _get(f"{base}/version", key, ca_file) is not None:
            models = (_get(f"{base}/v1/models", key, ca_file) or {}).get("data") or [{}]
            return RunningServer("vllm", str(models[0].get("root") or models[0].get("id")))
    except (OSError, ValueError, LookupError, AttributeError) as error:
        raise ConfigError(f"The server at {url} cannot be asked what it is: {error}.") from error
    raise ConfigError(f"At {url} neither vLLM nor llama-server answers; other servers are no engines here.")


def _get(url: str, key: str | None, ca_file: Path | None) -> dict[str, Any] | None:
    """The object at an address; None if the server has no such address. Raises OSError or ValueError."""
    request = urllib.request.Request(url)  # noqa: S310 - http or https
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    context = None if ca_file is None else ssl.create_default_context(cafile=ca_file)
    # Without the environment's proxy, as all calls of engines.
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=SECONDS) as answer:
            content = json.loads(answer.read(MAX_BYTES))
    except urllib.error.HTTPError as error:
        if error.code in (404, 405, 501):
            return None
        raise
    return content if isinstance(content, dict) else None
