"""Which dialect a model folder speaks."""

from pathlib import Path

from server.dialects.base import Dialect
from server.dialects.chat import ChatDialect


def pick(folder: Path, stop_ids: frozenset[int]) -> Dialect:
    """The dialect of the model in `folder`, whose generation ends with one of `stop_ids`.

    Raises FileNotFoundError or ValueError, naming the file, when the folder is not usable.
    """
    return ChatDialect(folder, stop_ids)
