"""Settings of the model and of what runs it: this process, servers of vLLM or llama.cpp, or a script."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from server.configuration.setting_groups.declare import setting

EngineName = Literal["auto", "model", "vllm", "llama-server", "scripted"]
REMOTE_ENGINES = ("vllm", "llama-server")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Model."""

    model: Path | None = setting(
        None,
        "a model's folder, a GGUF file, the id of a hub's model (owner/name[@revision], or owner/name:Q4_K_M "
        "for a GGUF file), or the URL of an engine's server; default: the demo model",
    )
    gguf: Path | None = setting(
        None, "the GGUF file that llama-server is started with; default: the model, where it is one"
    )
    model_name: str | None = setting(
        None, "the model's name for clients; default: the id or the folder's name"
    )
    tool_parser: str | None = setting(
        None, "the format of the model's tool calls; default: detected from its chat template"
    )
    chat_template: Path | None = setting(
        None, "a file with a chat template in Jinja, in place of the folder's own"
    )
    template_check: Literal["refuse", "warn"] = setting(
        "refuse",
        "at the start with a template whose marks no format reads: refuse, or serve and warn",
    )
    adapters: str | None = setting(
        None, "LoRA adapters in peft's format, served as further models: name=folder, comma-separated"
    )


@dataclass(frozen=True, kw_only=True)
class LocalEngineSettings:
    """Engine of this process."""

    device: Literal["auto", "cpu", "cuda"] = setting("auto", "the device that the model runs on")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "the data type of the weights; `auto` is the checkpoint's, but on a CPU without instructions for "
        "bfloat16, and for float16, it is float32",
    )
    token_budget: int | None = setting(
        None,
        "the maximum of tokens computed in one step; default: 512 on a CPU, 2048, 4096 or 8192 on a GPU by "
        "the memory that the weights leave",
        low=1,
    )
    kv_memory: int | None = setting(None, "bytes of the KV cache; default: by model and free memory", low=1)
    torch_threads: int | None = setting(
        None,
        "CPU threads per operation; default: one for a small model, else torch's choice",
        low=1,
        high=4096,
    )
    block_size: int | None = setting(
        None,
        "tokens of a KV block, by which prompts share prefixes; default: 16, or 256 where the attention "
        "kernel is `varlen`",
        low=1,
        high=4096,
    )
    attention: Literal["auto", "varlen", "flash", "sdpa"] = setting(
        "auto",
        "how attention is computed on a GPU: by the first kernel that is there and right, or by this one: "
        "FlashAttention 3 (`flash`), torch's kernel for pages (`varlen`), or torch's attention over gathered "
        "blocks (`sdpa`)",
    )
    hub_kernel: str | None = setting(
        None,
        "an attention kernel for GPUs, which the package `kernels` downloads from the Hugging Face Hub: "
        "owner/name@commit; default: none",
    )
    graphs: Literal["auto", "on", "off"] = setting(
        "auto", "CUDA graphs of decode steps: where they are right, always or the start fails, or never"
    )
    ahead: Literal["auto", "on", "off"] = setting(
        "auto",
        "asynchronous scheduling, a step starts before the last one's tokens are read: on a GPU where it is "
        "right, always or the start fails, or never",
    )
    prompt_lookup: Literal["auto", "off"] = setting(
        "auto",
        "prompt lookup, a step verifies several tokens that the request's own text suggests: on a CPU while "
        "that is expected to be faster, or never; answers are the same",
    )
    hang_seconds: float = setting(
        300.0, "seconds after which an engine step counts as hung and the engine as dead", low=1
    )


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Engine servers."""

    engine: EngineName = setting(
        "auto",
        "what runs the model: this process (`model`), or `vllm` or `llama-server`, at engine-url or, without "
        "one, as a program that is started and ended with this one; `auto` takes what fits the model and the "
        "machine; `scripted` generates random words without a model, for tests and drills",
    )
    engine_url: str | None = setting(
        None,
        "servers of `vllm` or `llama-server`: http://host:port, comma-separated; dns:http://host:port for "
        "every address of a name; file:/path for a file with a URL a line",
    )
    engine_args: str | None = setting(
        None, "more arguments for the engine's program that is started here, as in a shell"
    )
    engine_model: str | None = setting(
        None, "the model's name at the servers; default: the only one that they serve"
    )
    engine_api_key: str | None = setting(
        None, "the API key of the servers; a flag is visible in `ps`, the variable is not"
    )
    engine_ca: Path | None = setting(
        None, "a file with the certificates of the servers' authority; default: the machine's authorities"
    )
    engine_outage_seconds: float = setting(
        300.0, "seconds that a response waits while no server can take it", low=0
    )


@dataclass(frozen=True, kw_only=True)
class ScriptedEngineSettings:
    """Scripted engine."""

    scripted_context_length: int = setting(
        32768, "tokens of a prompt and its answer; the default is enough for coding agents", low=1
    )
    scripted_tokens: int = setting(32, "tokens of each answer of the scripted engine", low=1)
    scripted_step_seconds: float = setting(0.0, "seconds between two tokens of the scripted engine", low=0)
    scripted_fault: str | None = setting(
        None,
        "a fault of the scripted engine: kind@token for every answer, kind@token:seed for one seed; kinds: "
        "crash, fail, raise, oom, hang, die",
    )
    scripted_answers: str | None = setting(
        None, "answers of the scripted engine: JSON pairs of a text in the prompt and its answer"
    )
