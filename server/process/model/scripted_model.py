"""Builds the scripted engine with a model folder's vocabulary, so that its tokens decode to text."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from engine.request import Deliver, Engine, EngineRequest, OnEngineDeath
from engine.scripted_engine import FAULT_KINDS, Fault, Script, ScriptedConfig, ScriptedEngine
from engine.vocabulary import read_vocabulary
from engine.weights_digest import weights_digest
from server.configuration.settings import Config
from server.errors import ConfigError
from server.protocol.decode import decode_as


def scripted_engine(config: Config, folder: Path, deliver: Deliver, on_dead: OnEngineDeath) -> Engine:
    """An engine that generates words of the folder's tokenizer, or the configured answers."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = set(tokenizer.get_added_tokens_decoder())
    known = {token: text for text, token in tokenizer.get_vocab().items() if token not in special}
    words = tuple(sorted(token for token, text in known.items() if text.isascii() and text.isalpha()))
    stop_id = _stop_id(folder)
    default = Script(length=config.scripted_tokens)
    scripts = _script_chooser(config, tokenizer, stop_id, default)
    return ScriptedEngine(
        ScriptedConfig(
            vocabulary=words,
            stop_id=stop_id,
            context_length=config.scripted_context_length,
            vocab_size=tokenizer.get_vocab_size(),
            spelling=read_vocabulary(folder, tokenizer.get_vocab_size()),
            script=default,
            weights=_weights(folder, config.scripted_answers),
            step_seconds=config.scripted_step_seconds,
            max_running=config.running_limit,
            max_waiting=config.max_waiting,
            max_per_key=config.max_of_tenant,
            hang_seconds=config.hang_seconds,
        ),
        deliver,
        scripts,
        on_dead=on_dead,
    )


def _weights(folder: Path, answers: str | None) -> str:
    """A digest of what decides the answers beside the prompt. The folder counts as if its weights did."""
    content = f"scripted:{weights_digest(folder)}:{answers or ''}"
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()


def _script_chooser(
    config: Config, tokenizer: Tokenizer, stop_id: int, default: Script
) -> Callable[[EngineRequest], Script | None]:
    """Chooses a prompt's script, by the first text that is in it, and puts the configured fault in."""
    try:
        pairs = decode_as(config.scripted_answers or "[]", list[tuple[str, str]])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"scripted-answers must be a JSON list of pairs of strings: {error}.") from error
    scripts = [
        (text, Script(tokens=(*tokenizer.encode(answer, add_special_tokens=False).ids, stop_id)))
        for text, answer in pairs
    ]
    fault, seed = (None, None) if config.scripted_fault is None else read_fault(config.scripted_fault)

    def choose(engine_request: EngineRequest) -> Script | None:
        script = None
        if scripts:
            prompt = engine_request.prompt[: len(engine_request.prompt) - engine_request.output_offset]
            prompt_text = tokenizer.decode(prompt, skip_special_tokens=False)
            script = next((script for text, script in scripts if text in prompt_text), None)
        if fault is not None and seed in (None, engine_request.sampling.seed):
            return replace(script or default, fault=fault)
        return script

    return choose


def read_fault(text: str) -> tuple[Fault, int | None]:
    """The fault and seed of `kind@token` or `kind@token:seed`; None: all seeds. Raises ConfigError."""
    match = re.fullmatch(r"([a-z]+)@(\d+)(?::(\d+))?", text, re.ASCII)
    kind = next((kind for kind in FAULT_KINDS if match and kind == match[1]), None)
    if match is None or kind is None:
        raise ConfigError(
            f"scripted-fault must be one of {', '.join(FAULT_KINDS)}, @ and a token, not {text!r}."
        )
    return Fault(kind=kind, at_token=int(match[2])), None if match[3] is None else int(match[3])


def _stop_id(folder: Path) -> int:
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        stop = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
        if stop is not None:
            return int(stop[0] if isinstance(stop, list) else stop)
    raise ConfigError(f"{folder} names no eos_token_id.")
