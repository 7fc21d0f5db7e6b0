"""`with_model`: the configuration with the model as a folder of this machine, fetched if it is a hub's."""

from collections.abc import Callable
from dataclasses import replace

from server.configuration.model_source import HubModel, read_source
from server.configuration.setting_groups.engine import REMOTE_ENGINES
from server.configuration.settings import Config
from server.configuration.shipped_files import model_folder
from server.configuration.unusable_models import check_files


def with_model(config: Config, say: Callable[[str], None]) -> Config:
    """The configuration; of a model of a hub, `model` is its folder in the cache and `model_name` its id.

    Raises ConfigError if it is neither in the cache nor to be had.
    """
    source = None if config.model is None else read_source(config.model)
    if not isinstance(source, HubModel):
        return config
    # Imported for ids only: it brings an HTTP client.
    from server.process.model_download import download

    with_weights = config.engine not in (*REMOTE_ENGINES, "scripted")
    folder = download(source, say, with_weights=with_weights)
    check_files(model_folder(replace(config, model=folder)), with_weights=with_weights)
    return replace(config, model=folder, model_name=config.model_name or source.repository)
