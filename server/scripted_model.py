"""The scripted engine with a real model folder's vocabulary, so that its tokens read as text."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from engine.messages import Deliver, Engine
from engine.scripted import Script, ScriptedConfig, ScriptedEngine
from server.config import Config
from server.errors import ConfigError


def scripted_engine(config: Config, folder: Path, deliver: Deliver) -> Engine:
    """An engine that answers with plain words of the folder's tokenizer."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = set(tokenizer.get_added_tokens_decoder())
    words = tuple(
        sorted(
            token
            for text, token in tokenizer.get_vocab().items()
            if token not in special and text.isascii() and text.isalpha()
        )
    )
    return ScriptedEngine(
        ScriptedConfig(
            vocabulary=words,
            stop_id=_stop_id(folder),
            vocab_size=tokenizer.get_vocab_size(),
            script=Script(length=config.scripted_tokens),
            step_seconds=config.scripted_step_seconds,
            max_running=config.max_running,
            max_waiting=config.max_waiting,
        ),
        deliver,
    )


def _stop_id(folder: Path) -> int:
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        found = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
        if found is not None:
            return int(found[0] if isinstance(found, list) else found)
    raise ConfigError(f"{folder} names no eos_token_id.")
