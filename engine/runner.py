"""One step on a model: a plan becomes one packed forward pass, whose logits become tokens.

Made by the thread that starts the engine, then used by the engine thread alone. Ignorant of who the
jobs belong to and of why the plan is what it is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from engine.adapters import Adapters, install_adapters
from engine.batches import Batches
from engine.config import EngineConfig, Limits
from engine.executor import Drawn, EngineFault, OutOfMemory, RowFailure, StepResult
from engine.grammar import Followers, GrammarCompiler
from engine.kv import KvStore
from engine.logprobs import measure_many
from engine.masking import apply_masks
from engine.memory import count_blocks, keep_freed_memory
from engine.messages import Capabilities, PromptLogprobs
from engine.model import LoadedModel, load_model
from engine.packing import Packer, Wish
from engine.scheduler import Plan
from engine.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class Asked:
    """A stretch of prompt tokens whose logprobs are to be told. Their logits come one place earlier."""

    sequence: TokenSequence
    begin: int
    end: int

    @property
    def token_ids(self) -> list[int]:
        return self.sequence.tokens[self.begin : self.end]


SMALL_MODEL = 20_000_000
"""Parameters below which threads of one operation wait for each other longer than they compute."""


class ModelExecutor:
    """Implements `executor.Executor` with a model."""

    def __init__(self, model: LoadedModel, adapters: Adapters, config: EngineConfig, store: KvStore) -> None:
        self._network = model.network
        self._threads = config.torch_threads or (1 if _is_small(model) else None)
        self._store = store
        self._adapters = adapters
        self._packer = Packer(store, adapters.places)
        self._batches = Batches(model.capabilities.vocab_size, model.device)
        self.capabilities: Capabilities = model.capabilities
        self.vocabulary = model.vocabulary
        self.grammars = None if model.vocabulary is None else GrammarCompiler(model.vocabulary)
        self._followers = Followers(self.grammars)

    @staticmethod
    def load(config: EngineConfig, progress: Callable[[str], None]) -> tuple["ModelExecutor", Limits]:
        """Loads the model and makes its KV cache. Raises `ModelRefused`."""
        model = load_model(config, progress)
        adapters = install_adapters(model.network, config.adapters, progress)
        context = model.capabilities.context_length
        per_token = sum(shape.numbers for shape in model.shapes) * model.dtype.itemsize
        on_gpu = model.device.type == "cuda"
        if not on_gpu:
            keep_freed_memory()
        # On a CPU the shelves may hold every token once more.
        copies = 1 if on_gpu else 2
        blocks = count_blocks(
            config,
            block_bytes=per_token * config.block_size * copies,
            context_length=context,
            gpu_free=torch.cuda.mem_get_info(model.device)[0] if on_gpu else None,
        )
        store = KvStore(model.shapes, blocks, config.block_size, model.dtype, model.device)
        held = blocks * config.block_size
        size = held * per_token * copies / 2**20
        progress(f"the KV cache holds {held} tokens in at most {size:.0f} MiB")
        usable = replace(model.capabilities, context_length=min(context, held), adapters=adapters.names)
        executor = ModelExecutor(replace(model, capabilities=usable), adapters, config, store)
        return executor, config.limits(blocks)

    @contextmanager
    def thread_context(self) -> Iterator[None]:
        """Inference mode, like the number of threads, belongs to a thread."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        with torch.inference_mode():
            yield

    def execute(self, plan: Plan) -> StepResult:
        try:
            return self._compute(plan)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(str(error)) from error
        except torch.AcceleratorError as error:
            # After a fault of the device every later call on it fails too.
            raise EngineFault(str(error)) from error
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
                raise OutOfMemory(str(error)) from error
            raise

    def scrub(self, blocks: list[int]) -> None:
        self._store.scrub(blocks)

    def interrupt(self) -> None:
        """A step is never waited in."""

    def _compute(self, plan: Plan) -> StepResult:
        asked = self._asked(plan)
        packed = self._packer.pack(plan, [wish for wish, _ in asked])
        self._adapters.step = packed.adapters
        logits = self._network(
            input_ids=packed.token_ids,
            position_ids=packed.positions,
            use_cache=False,
            logits_to_keep=packed.ends,
            step=packed.attention,
        ).logits
        sequences = [chunk.sequence for chunk in plan if chunk.draws]
        told = self._tell(logits[0, len(sequences) :], [ask for _, ask in asked])
        return StepResult(self._sample(logits[0, : len(sequences)], sequences), told)

    def _sample(self, logits: Tensor, sequences: list[TokenSequence]) -> list[Drawn | RowFailure]:
        if not sequences:
            return []
        batch = self._batches.of(sequences)
        masks = self._followers.masks(sequences)
        if masks is None:
            return batch.sample(logits)
        drawn = batch.sample(logits, partial(apply_masks, masks=masks))
        for row, sentence in masks.failed.items():
            drawn[row] = RowFailure("engine_error", sentence)
        return drawn

    def _tell(self, logits: Tensor, asked: list[Asked]) -> list[PromptLogprobs]:
        """What was asked of prompts; its logits follow each other in `logits`."""
        told = []
        for ask in asked:
            rows, logits = logits.tensor_split((ask.end - ask.begin,))
            wanted = ask.sequence.job.prompt_logprobs or 0
            found = measure_many(rows, ask.token_ids, wanted)
            told.append(PromptLogprobs(ask.sequence.job.job_id, ask.begin, tuple(found)))
        return told

    def _asked(self, plan: Plan) -> list[tuple[Wish, Asked]]:
        """The prompt tokens whose logprobs this step can tell."""
        asked = []
        for index, chunk in enumerate(plan):
            untold, stop = chunk.sequence.untold, chunk.start + chunk.count
            if untold and untold[0] <= stop:
                ask = Asked(chunk.sequence, untold[0], min(stop + 1, untold.stop))
                places = range(ask.begin - 1 - chunk.start, ask.end - 1 - chunk.start)
                asked.append((Wish(index, places), ask))
        return asked


def _is_small(model: LoadedModel) -> bool:
    return model.network.num_parameters() < SMALL_MODEL
