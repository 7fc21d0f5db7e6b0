"""`examine`: what this configuration is on this machine, as findings of one sentence each; changes nothing.

Model and engine are loaded as `serve` loads them; the database is asked for its schema.
"""

import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from engine.config import ModelRefused, UnsupportedModel
from server.configuration.setting_groups import REMOTE_ENGINES
from server.configuration.settings import Config
from server.configuration.shipped_files import model_folder, name_of
from server.configuration.unusable_models import OTHER_ENGINE, check_files, check_template
from server.embedded_postgres.system_account import EmbeddedError
from server.errors import ConfigError
from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.model_format import ModelFormat
from server.process.model import load_model
from server.process.model.child_engine import engine_command
from server.process.model.find_model import with_model
from server.process.model.load_model import engine_config, read_adapters, read_format, refused_without_torch
from server.process.open_database import OpenDatabase, data_dir
from server.store.database_errors import DatabaseError, first_line
from server.store.schema.schema_status import BEHIND, UNKNOWN, schema_state
from server.store.session_check import STANDBY

if TYPE_CHECKING:
    from engine.load_diagnosis import Diagnosis

MANY_TOKENS = 1000
"""A KV cache of fewer tokens holds hardly one conversation."""

FIRST_SERVER_SECONDS = 10.0
"""How long a server of another engine is waited for."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: Literal["ok", "note", "problem"]
    """A problem keeps the server from starting or from answering right; a note is worth reading."""
    topic: str
    sentence: str


ok, note, problem = partial(Finding, "ok"), partial(Finding, "note"), partial(Finding, "problem")


def examine(config: Config, say: Callable[[str], None]) -> Iterator[Finding]:
    """The findings, as they are made. `say` gets what is being done meanwhile."""
    yield from examine_engine(config, say)
    yield from examine_database(config)


def examine_engine(config: Config, say: Callable[[str], None]) -> Iterator[Finding]:
    try:
        config = with_model(config, say)
        folder = model_folder(config)
        load_model.check_engine_settings(config)
        if config.engine == "scripted":
            yield note("engine", "The scripted engine answers with made-up words, without a model.")
        elif config.engine in REMOTE_ENGINES and config.engine_url is None:
            command = shlex.join(engine_command(config, folder, config.model_name or name_of(folder), 0))
            yield ok("engine", f"{config.engine} would be started: {command}")
        elif config.engine in REMOTE_ENGINES:
            yield from _examine_servers(config, folder, say)
        else:
            check_files(folder, with_weights=True)
            check_template(folder, config.chat_template)
            requested = engine_config(config, folder, read_adapters(config))
            with refused_without_torch():
                from engine.load_diagnosis import diagnose
            yield from describe_engine(diagnose(requested, say))
        yield from describe_format(read_format(config, folder))
    except UnsupportedModel as error:
        yield problem("engine", _sentence(f"{error} {OTHER_ENGINE}"))
    except (ConfigError, ModelRefused, OSError, ValueError) as error:
        yield problem("engine", _sentence(str(error)))


def _examine_servers(config: Config, folder: Path, say: Callable[[str], None]) -> Iterator[Finding]:
    engine = load_model.connect(
        config, folder, lambda _messages: None, say, lambda _why: None, FIRST_SERVER_SECONDS
    )
    info = engine.model_info
    engine.close(drain=False)
    yield ok(
        "engine",
        f"A server of {config.engine} serves the model of {name_of(folder)}, with contexts of "
        f"{info.context_length} tokens.",
    )


def describe_engine(engine: "Diagnosis") -> Iterator[Finding]:
    """Yield the engine's choices, and advice on better ones. Pure."""
    info, limits = engine.model_info, engine.limits
    kv_tokens = limits.kv_blocks * limits.block_size
    size = f"{engine.parameters / 1e6:.0f} million parameters, {engine.weight_bytes / 2**30:.1f} GiB"
    yield ok(
        "device", f"The model ({size}) runs on {engine.device} ({engine.device_name}) in {engine.dtype}."
    )
    if engine.attention_fault is None:
        yield ok("attention", f"Attention is computed by {info.attention}, and is right here.")
    else:
        yield problem("attention", _sentence(f"Attention is wrong here: {engine.attention_fault}"))
    decode = {"graphs": "CUDA graphs", "eager": "single operations", "static": "static passes"}
    yield ok("graphs", f"Steps that only generate run as {decode.get(info.decode, info.decode)}.")
    order = "before the last one's tokens are" if engine.pipelined else "after the last one's tokens were"
    yield ok("ahead", f"A step begins {order} read.")
    yield Finding(
        "ok" if kv_tokens >= min(MANY_TOKENS, info.context_length) else "note",
        "memory",
        f"The KV cache has {limits.kv_blocks} blocks of {limits.block_size} tokens, "
        f"{kv_tokens} in all; a context has at most {info.context_length}.",
    )
    yield ok(
        "steps",
        f"A step computes at most {limits.token_budget} tokens of at most {limits.max_running} "
        f"responses, with {engine.threads} CPU threads.",
    )
    yield from (note("fallback", _sentence(line)) for line in engine.warnings)
    yield from (note("advice", line) for line in engine_advice(engine))


def engine_advice(engine: "Diagnosis") -> Iterator[str]:
    """Why another engine may be better, each in a sentence. Pure."""
    on_gpu = engine.device.startswith("cuda")
    if engine.gpus > 1:
        yield f"This machine has {engine.gpus} GPUs, and this engine uses one: `--engine vllm` uses all."
    if engine.gpus and not on_gpu:
        yield "This machine has a GPU, and the model runs on the CPU: set device to auto or cuda."
    if on_gpu and engine.gpus == 1:
        yield "For many users at a time `--engine vllm` is faster on a GPU; for a few this engine is enough."
    if on_gpu and engine.model_info.attention.startswith("sdpa"):
        yield (
            "No kernel for paged attention serves this model here, so keys are gathered in every step: "
            "FlashAttention 3 or `--engine vllm` would be faster."
        )
    if engine.dequantized:
        yield (
            f"The weights are written in {engine.quantization} and held in {engine.dtype}, which takes "
            "more memory and time: `--engine vllm` computes with few bits."
        )
    if not engine.gpus and engine.parameters > 4e9:
        yield (
            "Models of this size are slow on a CPU: `--engine llama-server` with a GGUF file of few bits is "
            "faster."
        )


def describe_format(model_format: ModelFormat) -> Iterator[Finding]:
    """Yield how the model is spoken to: its calls, its reasoning, and what its chat template reads. Pure."""
    if not isinstance(model_format, ChatTemplateFormat):
        yield ok("format", "Prompts and outputs are in harmony, the format of gpt-oss.")
        return
    calls = model_format.call_format or "text, as their format is not known: see the setting tool-parser"
    marks = " and ".join(model_format.reasoning_tags) or "no marks"
    efforts = "; ".join(model_format.effort_values) or "all alike"
    inputs = ", ".join(model_format.template_inputs) or "none"
    described = "Tools are described in the system message. " if model_format.describes_tools else ""
    finding = ok if model_format.call_format else note
    yield finding("calls", f"{described}Calls of tools are read as {calls}.")
    yield ok("reasoning", f"Reasoning stands between {marks}.")
    yield ok("effort", f"Values of reasoning.effort: {efforts}.")
    yield ok("variables", f"Variables of chat_template_kwargs that the template reads: {inputs}.")


def examine_database(config: Config) -> Iterator[Finding]:
    """An embedded database that does not exist yet is not made."""
    if config.database_url is None and not (data_dir(config) / "pgdata").is_dir():
        yield ok("database", f"The first start makes an embedded Postgres in {data_dir(config)}.")
        return
    try:
        opened = OpenDatabase(config, lambda _line: None)
    except (ConfigError, EmbeddedError) as error:
        yield problem("database", _sentence(str(error)))
        return
    try:
        if not opened.is_embedded:
            opened.check_sessions()
        for sentence in opened.durability_complaints():
            yield Finding("problem" if sentence == STANDBY else "note", "durability", sentence)
        yield describe_schema(schema_state(opened.url), embedded=opened.is_embedded)
    except ConfigError as error:
        yield problem("database", _sentence(str(error)))
    except DatabaseError as error:
        yield problem("database", _sentence(f"The database does not answer: {first_line(error)}"))
    finally:
        opened.close()


def describe_schema(state: str, *, embedded: bool) -> Finding:
    """Pure; `state` is that of `schema_state`."""
    kind = "embedded" if embedded else "external"
    if state == "unknown":
        return problem("database", UNKNOWN)
    if state == "newer":
        return note(
            "database",
            f"The {kind} database answers; a newer release made its schema, on which this one can serve.",
        )
    if state == "current":
        return ok("database", f"The {kind} database answers, and its schema is this release's.")
    if embedded:
        return ok("database", "The embedded database answers; the next start upgrades its schema.")
    return problem("database", BEHIND)


def _sentence(text: str) -> str:
    """One line that begins with a capital and ends with a full stop."""
    line = " ".join(text.split())
    return line[:1].upper() + line[1:].rstrip(".?") + "."
