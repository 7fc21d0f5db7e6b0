"""One step on a model: a plan becomes one packed forward pass, whose logits become tokens.

Made by the thread that starts the engine, then used by the engine thread alone. Ignorant of who the
requests belong to and of why the plan is what it is.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from engine.attention.paged import PagedAttentionBackend
from engine.config import EngineConfig, Limits
from engine.device_copies import AsyncToHost, to_device
from engine.executor import EngineFault, OutOfMemory, RowFailure, StepResult
from engine.grammar.compiler import GrammarCompiler
from engine.kv.kv_cache import KVCache
from engine.kv.memory_sizing import count_blocks, keep_freed_memory
from engine.lora.adapter_layers import Adapters, install_adapters
from engine.model.loader import LoadedModel, load_model, refusing
from engine.request import ModelInfo, PromptLogprobs
from engine.runner.input_builder import ForwardInputs, InputBuilder, LogitRows
from engine.runner.paged_input_builder import PagedInputBuilder
from engine.runner.select_decoding import select_attention_and_graphs
from engine.runner.static_decode import DeviceTokens, StaticDecoder
from engine.sampling.grammar_masks import GrammarMatchers
from engine.sampling.logit_masking import apply_masks
from engine.sampling.logprobs import measure_many
from engine.sampling.sampler import PendingSample
from engine.sampling.sampling_batch import SamplingBatches
from engine.sampling.token_rules import TokenRules
from engine.scheduling.scheduler import SchedulerOutput
from engine.scheduling.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class PromptLogprobRequest:
    """A stretch of prompt tokens whose logprobs are to be told. Their logits come one place earlier."""

    sequence: TokenSequence
    begin: int
    end: int

    @property
    def token_ids(self) -> list[int]:
        return self.sequence.tokens[self.begin : self.end]


@dataclass(frozen=True, slots=True)
class RunningForward:
    """Implements `executor.Begun`."""

    executor: "ModelRunner"
    sequences: list[TokenSequence]
    """Those that draw, in the order of the logits."""
    logits: Tensor
    partial: list[TokenSequence]
    """The others."""
    ends: Tensor
    """The logits at the ends of what was computed of those; they only say whether it is finite."""
    told: Tensor
    """The logits of prompts."""
    asked: list[PromptLogprobRequest]

    def draw(self, lives: Callable[[TokenSequence], bool] | None) -> "SampledStep":
        """None is that all live."""
        with _known_errors():
            return self.executor.draw(self, lives)


@dataclass(frozen=True, slots=True)
class SampledStep:
    """Implements `executor.Pending`."""

    sequences: list[TokenSequence]
    choice: PendingSample | None
    failed: Mapping[int, str]
    """By row, why nothing can be drawn."""
    told: list[PromptLogprobs]
    partial: list[TokenSequence]
    finite: AsyncToHost | None
    """One for each of `partial`; None if there are none."""

    def read(self) -> StepResult:
        with _known_errors():
            drawn = [] if self.choice is None else self.choice.read()
            finite = [] if self.finite is None else self.finite.read()[0].tolist()
        for row, sentence in self.failed.items():
            drawn[row] = RowFailure("engine_error", sentence)
        return StepResult(drawn, finite, self.told)


SHORTAGES = (
    "out of memory", "can't allocate memory", "not enough memory", "alloc_failed", "allocation_failed",
    "failed to allocate",
)  # fmt: skip
"""How torch, cuBLAS, cuDNN and NCCL say, in small letters, that there is no memory left."""

SMALL_MODEL = 20_000_000
"""Parameters below which threads of one operation wait for each other longer than they compute."""


class ModelRunner:
    """Implements `executor.Executor` with a model, and `executor.Ahead`."""

    def __init__(
        self,
        model: LoadedModel,
        adapters: Adapters,
        config: EngineConfig,
        store: KVCache,
        kernel: PagedAttentionBackend | None = None,
        static: StaticDecoder | None = None,
    ) -> None:
        self._network = model.network
        self._threads = config.torch_threads or (1 if _is_small(model) else None)
        self._store = store
        self._adapters = adapters
        self._batches = SamplingBatches(model.capabilities.vocab_size, model.device)
        self._packer = (
            InputBuilder(store, adapters.places)
            if kernel is None
            else PagedInputBuilder(store, kernel, adapters.places)
        )
        self._static = static
        self._unread: DeviceTokens | None = None
        """The last tokens that were drawn."""
        on_gpu = model.device.type == "cuda"
        self.ahead = self if (on_gpu if config.ahead is None else config.ahead) else None
        self.capabilities: ModelInfo = model.capabilities
        self.vocabulary = model.vocabulary
        self.grammars = None if model.vocabulary is None else GrammarCompiler(model.vocabulary)
        self._followers = GrammarMatchers(self.grammars)
        self._rules = TokenRules(model.capabilities.vocab_size)

    @staticmethod
    def load(config: EngineConfig, progress: Callable[[str], None]) -> tuple["ModelRunner", Limits]:
        """Loads the model and makes its KV cache. Raises `ModelRefused`."""
        with refusing(config.model):
            return ModelRunner._load(config, progress)

    @staticmethod
    def _load(config: EngineConfig, progress: Callable[[str], None]) -> tuple["ModelRunner", Limits]:
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
        store = KVCache(model.shapes, blocks, config.block_size, model.dtype, model.device)
        held = blocks * config.block_size
        size = held * per_token * copies / 2**20
        progress(f"the KV cache holds {held} tokens in at most {size:.0f} MiB")
        usable = min(context, held)
        decoding = select_attention_and_graphs(model, store, config, usable, progress)
        capabilities = replace(
            model.capabilities,
            context_length=usable,
            adapters=adapters.names,
            attention=decoding.attention,
            decode=decoding.decode,
        )
        model = replace(model, capabilities=capabilities)
        executor = ModelRunner(model, adapters, config, store, decoding.kernel, decoding.static)
        if executor.grammars is not None:
            executor.grammars.load()  # now, when nobody waits for any thread yet
        return executor, config.limits(blocks)

    @contextmanager
    def thread_context(self) -> Iterator[None]:
        """Inference mode, like the number of threads, belongs to a thread."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        with torch.inference_mode():
            yield

    def execute(self, plan: SchedulerOutput) -> StepResult:
        step = self.begin(plan).draw(None)
        result = step.read()
        if self._static is not None:
            planned = [chunk.sequence for chunk in plan if chunk.draws]
            row_of = {sequence: row for row, sequence in enumerate(step.sequences)}
            drawn = [result.drawn[row_of[sequence]] for sequence in planned]
            return replace(result, drawn=drawn)
        return result

    def scrub(self, blocks: list[int]) -> None:
        self._store.scrub(blocks)

    def interrupt(self) -> None:
        """A step is never waited in."""

    def close(self) -> None:
        if self.grammars is not None:
            self.grammars.close()

    def begin(self, plan: SchedulerOutput) -> RunningForward:
        """Runs the plan through the model, or tells the device to."""
        with _known_errors():
            asked = self._asked(plan)
            begun = self._begin_static(plan) if self._static is not None and not asked else None
            return begun or self._begin_packed(plan, asked)

    def _begin_static(self, plan: SchedulerOutput) -> RunningForward | None:
        assert self._static is not None
        shape = self._static.shape_for(plan)
        if shape is None or any(chunk.sequence.request.adapter for chunk in plan):
            return None
        self._adapters.step = None
        found = self._static.run(plan, shape, self._unread)
        none = found.logits[:0]
        return RunningForward(self, found.requests, found.logits[: len(found.requests)], [], none, none, [])

    def _begin_packed(
        self, plan: SchedulerOutput, asked: list[tuple[LogitRows, PromptLogprobRequest]]
    ) -> RunningForward:
        wishes = [wish for wish, _ in asked]
        packed = self._packer.pack(plan, wishes)
        sequences = [chunk.sequence for chunk in plan if chunk.draws]
        if self.ahead is not None:
            self._fill_in_unread(packed.token_ids[0], packed.ends, sequences)
        self._adapters.step = packed.adapters
        logits = self._forward(packed)
        partial = [chunk.sequence for chunk in plan if not chunk.draws]
        counts = [len(sequences), len(partial), len(logits) - len(plan)]
        drawing, ends, told = torch.split(logits, counts)
        return RunningForward(self, sequences, drawing, partial, ends, told, [ask for _, ask in asked])

    def _forward(self, packed: ForwardInputs) -> Tensor:
        """`[ends, vocabulary]`."""
        logits: Tensor = self._network(
            input_ids=packed.token_ids,
            position_ids=packed.positions,
            use_cache=False,
            logits_to_keep=packed.ends,
            step=packed.attention,
        ).logits
        return logits[0]

    def _fill_in_unread(self, token_ids: Tensor, ends: Tensor, sequences: list[TokenSequence]) -> None:
        """`ends` says where in the packed row the last token of each of these sequences is."""
        rows = [row for row, sequence in enumerate(sequences) if sequence.in_flight]
        if not rows:
            return
        assert self._unread is not None, "a token was neither read nor kept on the device"
        places = [self._unread.place_of[sequences[row]] for row in rows]
        sent = to_device(torch.tensor([rows, places]), torch.long, token_ids.device)
        token_ids.index_copy_(
            0, ends.index_select(0, sent[0]), self._unread.token_ids.index_select(0, sent[1])
        )

    def draw(self, begun: RunningForward, lives: Callable[[TokenSequence], bool] | None) -> SampledStep:
        """Draws for the requests that live; all their tokens before this one must be known."""
        told = self._tell(begun, lives) if begun.asked else []
        finite = AsyncToHost(begun.ends.amax(dim=1).isfinite()) if begun.partial else None
        sequences, logits = begun.sequences, begun.logits
        if lives is not None:
            rows = [row for row, sequence in enumerate(sequences) if lives(sequence)]
            if len(rows) < len(sequences):
                sequences = [sequences[row] for row in rows]
                logits = logits.index_select(0, to_device(rows, torch.long, logits.device))
        if not sequences:
            return SampledStep([], None, {}, told, begun.partial, finite)
        choice, failed = self._sample(logits, sequences)
        if self.ahead is not None:
            places = {sequence: row for row, sequence in enumerate(sequences)}
            self._unread = DeviceTokens(choice.token_ids, places)
        return SampledStep(sequences, choice, failed, told, begun.partial, finite)

    def _sample(
        self, logits: Tensor, sequences: list[TokenSequence]
    ) -> tuple[PendingSample, Mapping[int, str]]:
        batch = self._batches.of(sequences)
        masks = self._rules.restrict(sequences, self._followers.masks(sequences))
        if masks is None:
            return batch.begin(logits), {}
        return batch.begin(logits, partial(apply_masks, masks=masks)), masks.failed

    def _tell(
        self, begun: RunningForward, lives: Callable[[TokenSequence], bool] | None
    ) -> list[PromptLogprobs]:
        """What was asked of prompts; its logits follow each other."""
        told = []
        logits = begun.told
        for ask in begun.asked:
            rows, logits = logits.tensor_split((ask.end - ask.begin,))
            if lives is not None and not lives(ask.sequence):
                continue
            wanted = ask.sequence.request.prompt_logprobs or 0
            found = measure_many(rows, ask.token_ids, wanted)
            told.append(PromptLogprobs(ask.sequence.request.request_id, ask.begin, tuple(found)))
        return told

    def _asked(self, plan: SchedulerOutput) -> list[tuple[LogitRows, PromptLogprobRequest]]:
        """The prompt tokens whose logprobs this step can tell."""
        asked = []
        for index, chunk in enumerate(plan):
            untold, stop = chunk.sequence.untold, chunk.start + chunk.count
            if untold and untold[0] <= stop:
                ask = PromptLogprobRequest(chunk.sequence, untold[0], min(stop + 1, untold.stop))
                places = range(ask.begin - 1 - chunk.start, ask.end - 1 - chunk.start)
                asked.append((LogitRows(index, places), ask))
        return asked


@contextmanager
def _known_errors() -> Iterator[None]:
    """Gives the errors of torch the names that the loop knows."""
    try:
        yield
        return
    except (MemoryError, RuntimeError) as error:  # which torch's own are
        if not _is_shortage(error):
            if isinstance(error, torch.AcceleratorError):
                # After a fault of the device every later call on it fails too.
                raise EngineFault(str(error)) from error
            raise
        sentence = str(error)
        # The frames of the pass that failed have its tensors.
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    raise OutOfMemory(sentence) from None


def _is_shortage(error: Exception) -> bool:
    """Libraries below torch have errors of their own for memory that is not there."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    sentence = str(error).lower()
    return any(words in sentence for words in SHORTAGES)


def _is_small(model: LoadedModel) -> bool:
    return model.network.num_parameters() < SMALL_MODEL
