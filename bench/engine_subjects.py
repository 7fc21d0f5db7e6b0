"""What the engine's measurements run: models made of random numbers, the engine, and its rivals.

Each subject is a callable that computes some prompts to their end and gives the tokens. All of them run
on one CPU thread, so that CPU time is what the work costs and not how well it was spread.
"""

import atexit
import functools
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.pre_tokenizers
import tokenizers.trainers
import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, DynamicCache, StaticCache

from engine.config import EngineConfig
from engine.core.local_engine import load
from engine.request import EngineRequest, Failed, Outbound, SamplingParams, Tokens

transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
torch.set_num_threads(1)

Prompts = list[list[int]]
GREEDY = SamplingParams(seed=0, temperature=0.0)

QWEN = {
    "vocab_size": 16384, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1536,
}  # fmt: skip
"""42 million parameters."""
GPT_OSS = {
    "vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "num_local_experts": 8,
    "num_experts_per_tok": 2, "sliding_window": 128,
}  # fmt: skip
"""30 million parameters."""
NULL = {
    "vocab_size": 128, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 16,
}  # fmt: skip
"""A model that computes next to nothing: what is left is the host's own work."""
SMALL = {
    "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
}  # fmt: skip
"""For what needs many requests and no particular speed."""


@functools.cache
def make_model(kind: str) -> Path:
    """Writes a model with random weights, `qwen`, `gpt_oss`, `null` or `small`; it goes with the process."""
    config_name, settings = {
        "qwen": ("Qwen3Config", QWEN),
        "gpt_oss": ("GptOssConfig", GPT_OSS),
        "null": ("Qwen3Config", NULL),
        "small": ("Qwen3Config", SMALL),
    }[kind]
    torch.manual_seed(7)
    config = getattr(transformers, config_name)(
        **settings,
        max_position_embeddings=4096,
        initializer_range=0.08,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    folder = tempfile.TemporaryDirectory(prefix="holdfast-bench-model-")
    atexit.register(folder.cleanup)
    model.save_pretrained(folder.name)
    return Path(folder.name)


def give_tokenizer(folder: Path, size: int) -> None:
    """Writes a tokenizer of so many tokens, learnt from Python's own library: grammars need to know
    what tokens spell."""
    tokenizer: Any = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(json.__file__).parents[1].glob("*.py"))
    tokenizer.train([str(source) for source in sources], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def make_prompts(lengths: Sequence[int], salt: int, vocabulary: int = 128) -> Prompts:
    """Other ids for every salt, so that no cache knows any of them."""
    source = torch.Generator().manual_seed(salt)
    return [torch.randint(1, vocabulary, (length,), generator=source).tolist() for length in lengths]


@functools.cache
def read_network(folder: Path, dtype: str, attention: str) -> Any:
    network: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation=attention, local_files_only=True
    )
    return network.eval()


class EngineSubject:
    """The engine with a listener that only counts."""

    def __init__(self, folder: Path, dtype: str = "float32", **settings: Any) -> None:
        defaults: dict[str, Any] = {"device": "cpu", "torch_threads": 1, "kv_blocks": 2048}
        config = EngineConfig(model=folder, dtype=dtype, **{**defaults, **settings})  # type: ignore[arg-type]
        self.engine = load(config, self._hear)
        self.when_told: Callable[[Outbound], None] = lambda _message: None
        self._outputs: dict[str, list[int]] = {}
        self._left = 0
        self._count = 0
        self._ended = threading.Event()

    def run(
        self, prompts: Prompts, limits: Sequence[int], sampling: Sequence[SamplingParams] = (), **fields: Any
    ) -> Prompts:
        """Computes all prompts together to their limits."""
        return self.run_requests(
            [
                self.request(prompt, limit, sampling[row] if sampling else GREEDY, **fields)
                for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
            ]
        )

    def run_all(self, prompts: Prompts, limits: Sequence[int], gaps: Sequence[float]) -> Prompts:
        """As `run`, with pauses of so many seconds before each prompt, if there are any."""
        requests = [self.request(prompt, limit) for prompt, limit in zip(prompts, limits, strict=True)]
        return self.run_requests(requests, gaps)

    def request(
        self, prompt: list[int], limit: int, sampling: SamplingParams = GREEDY, **fields: Any
    ) -> EngineRequest:
        self._count += 1
        return EngineRequest(
            request_id=f"j{self._count}", prompt=tuple(prompt), max_tokens=limit, sampling=sampling, **fields
        )

    def first_and_last_tokens(self, requests: Sequence[EngineRequest]) -> tuple[list[float], list[float]]:
        """CPU seconds from the first step to each request's first and last token."""
        firsts: dict[str, float] = {}
        lasts: dict[str, float] = {}
        began = 0.0

        def note(message: Outbound) -> None:
            if isinstance(message, Tokens):
                lasts[message.request_id] = time.process_time() - began
                firsts.setdefault(message.request_id, lasts[message.request_id])

        def begin() -> None:
            nonlocal began
            began = time.process_time()
            self.engine.set_paused(False)

        self.when_told = note
        self.engine.set_paused(True)
        self.run_requests(requests, begin=begin)
        self.when_told = lambda _message: None
        return [firsts[each.request_id] for each in requests], [lasts[each.request_id] for each in requests]

    def run_requests(
        self,
        requests: Sequence[EngineRequest],
        gaps: Sequence[float] = (),
        begin: Callable[[], None] = lambda: None,
    ) -> Prompts:
        """Submits the requests, so many seconds apart as `gaps` says, calls `begin`, and waits for all."""
        self._outputs = {request.request_id: [] for request in requests}
        self._left = len(requests)
        self._ended.clear()
        for row, request in enumerate(requests):
            if gaps:
                time.sleep(gaps[row])
            self.engine.submit(request)
        begin()
        assert self._ended.wait(600)
        return list(self._outputs.values())

    def close(self) -> None:
        self.engine.close(drain=True)

    def _hear(self, messages: Sequence[Outbound], /) -> None:
        for message in messages:
            if isinstance(message, Tokens):
                self._outputs[message.request_id] += message.token_ids
            else:
                assert not isinstance(message, Failed), message
                self._left -= 1
            self.when_told(message)
        if self._left == 0:
            self._ended.set()


def run_dynamic(network: Any, prompts: Prompts, count: int) -> Prompts:
    """The loop that anybody would write, over prompts of one length."""
    return _run_loop(network, prompts, count, DynamicCache(config=network.config))


def run_static(network: Any, prompts: Prompts, count: int) -> Prompts:
    """The same with a cache that is allocated whole."""
    length = len(prompts[0]) + count
    return _run_loop(network, prompts, count, StaticCache(config=network.config, max_cache_len=length))


def _run_loop(network: Any, prompts: Prompts, count: int, cache: Any) -> Prompts:
    with torch.inference_mode():
        ids = torch.tensor(prompts)
        columns: list[torch.Tensor] = []
        for _ in range(count):
            logits = network(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            ids = logits[:, -1].argmax(dim=-1, keepdim=True)
            columns.append(ids)
        tokens: Prompts = torch.cat(columns, dim=1).tolist()
    return tokens


class ContinuousBatching:
    """transformers' own; its cache and thread are made before the time is taken."""

    def __init__(self, network: Any, tokens: int, page_size: int = 16) -> None:
        settings = ContinuousBatchingConfig(
            page_size=page_size, num_blocks=-(-tokens // page_size) + 64, max_batch_tokens=512
        )
        greedy = transformers.GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, max_new_tokens=16, eos_token_id=-1
        )
        self._manager = network.init_continuous_batching(
            generation_config=greedy, continuous_batching_config=settings
        )

    def start(self) -> None:
        self._manager.start()
        self._collect([[1, 2, 3]], [2])

    def stop(self) -> None:
        """It turns round and round while it is idle, in the time of others."""
        self._manager.stop(block=True)

    def run(self, prompts: Prompts, limits: Sequence[int], gaps: Sequence[float] = ()) -> Prompts:
        return self._collect(prompts, limits, gaps)

    def _collect(self, prompts: Prompts, limits: Sequence[int], gaps: Sequence[float] = ()) -> Prompts:
        outputs: dict[str, list[int]] = {}
        for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            if gaps:
                time.sleep(gaps[row])
            outputs[self._manager.add_request(prompt, max_new_tokens=limit)] = []
        left = len(prompts)
        while left:
            result = self._manager.get_result(timeout=600)
            assert result is not None
            assert result.error is None, result.error
            if result.is_finished():
                outputs[result.request_id] = result.generated_tokens
                left -= 1
        return list(outputs.values())
