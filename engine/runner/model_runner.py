"""`ModelRunner`, the executor with a model: plan -> inputs -> forward pass -> logits -> sampled tokens."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, islice
from typing import TypeVar

import torch
from torch import Tensor

from engine.attention.paged_attention import PagedAttentionBackend, attending
from engine.config import EngineConfig, ExactName, ModelRefused
from engine.device_copies import AsyncToHost, to_device
from engine.executor import PendingTokens, RowFailure, SampledToken, StepResult
from engine.grammar.compiler import GrammarCompiler
from engine.kv_cache import KVCache
from engine.model.loader import LoadedNetwork
from engine.model.lora_layers import Adapters
from engine.model.prepacked_linear import products_keep_bits
from engine.prefix_states import PrefixStates
from engine.request import ImageText, ModelInfo, PromptLogprobs, RequestRefused
from engine.runner import bits_check, row_costs
from engine.runner.cached_passes import CachedPasses
from engine.runner.forward_check import has_experts
from engine.runner.image_embeddings import NO_IMAGES, PromptImages, StepImages
from engine.runner.input_builder import ForwardInputs, InputBuilder, PagedInputBuilder, PromptLogitRows
from engine.runner.pipelining_check import blocks_used, find_pipelining_fault
from engine.runner.state_passes import StatePasses, StateSlots
from engine.runner.static_decode import DeviceTokens, StaticDecoder
from engine.runner.torch_errors import translate_errors
from engine.sampling.logits_processors import apply_masks
from engine.sampling.logprobs import prompt_token_logprobs
from engine.sampling.sampling_batch import PendingSample, SamplingBatches
from engine.sampling.token_masks import TokenMasks
from engine.scheduling.drafts import DraftPlanner
from engine.scheduling.scheduler import SchedulerOutput
from engine.scheduling.sequence import TokenSequence

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunningForward:
    """Implements `executor.ForwardHandle`."""

    executor: "ModelRunner"
    sequences: list[TokenSequence]
    """In the order of `logits`, which have a row for each token of its draft after that of each."""
    drafts: list[tuple[int, ...]]
    logits: Tensor
    partial_prefills: list[TokenSequence]
    partial_logits: Tensor
    """`[len(partial_prefills), vocabulary]`: logits of their last computed tokens, tested for NaN."""
    prompt_logits: Tensor
    """`[n, vocabulary]`: the logits of `prompt_rows`, one after the other."""
    prompt_rows: list[PromptLogitRows]

    def sample(self, is_live: Callable[[TokenSequence], bool]) -> PendingTokens:
        with translate_errors():
            return self.executor.sample(self, is_live)


def _read_step(
    pending_sample: PendingSample | None,
    failed: Mapping[int, str],
    drafts: Sequence[tuple[int, ...]],
    finite: AsyncToHost | None,
) -> StepResult:
    """`failed` says by row why no token can be sampled; `finite` has a flag for each partial prefill."""
    with translate_errors():
        sampled = [] if pending_sample is None else pending_sample.read()
        flags = [] if finite is None else finite.read()[0].tolist()
    for row, sentence in failed.items():
        sampled[row] = RowFailure("engine_error", sentence)
    if any(drafts):
        rows = iter(sampled)
        sampled = [_accept(list(islice(rows, 1 + len(draft))), draft) for draft in drafts]
    return StepResult(sampled, flags)


def _accept(rows: Sequence[SampledToken | RowFailure], draft: tuple[int, ...]) -> SampledToken | RowFailure:
    """The token after the last known one, with those after it that follow from the draft.

    Each was drawn as it would have been alone; it counts if the tokens before it are those of the draft.
    """
    first, accepted = rows[0], list[SampledToken]()
    if isinstance(first, RowFailure):
        return first
    last = first
    for guess, row in zip(draft, rows[1:], strict=True):
        if last.token_id != guess or isinstance(row, RowFailure):
            break
        accepted.append(row)
        last = row
    rest_failed = any(isinstance(row, RowFailure) for row in rows)
    return replace(first, accepted=tuple(accepted), rest_failed=rest_failed)


def is_pipelined(config: EngineConfig, device: torch.device) -> bool:
    """Whether a step begins before the last one's tokens are read, if that is right on this device."""
    return device.type == "cuda" if config.pipelined is None else config.pipelined


MAX_BITS_OPERATIONS = 3e12
"""The check of bits is made if it takes at most this many: some seconds on a CPU."""

SMALL_MODEL = 20_000_000
"""Below this number of parameters, one CPU thread is faster than several, which wait for each other."""


class ModelRunner:
    """Implements `executor.Executor` with a model."""

    def __init__(
        self,
        model: LoadedNetwork,
        adapters: Adapters,
        config: EngineConfig,
        kv_cache: KVCache,
        backend: PagedAttentionBackend | None = None,
        static: StaticDecoder | None = None,
        max_running: int = 1,
        prefix_states: PrefixStates | None = None,
    ) -> None:
        self.model = model
        self._network = model.network
        is_small = model.network.num_parameters() < SMALL_MODEL
        self._threads = config.torch_threads or (1 if is_small else None)
        self._kv_cache = kv_cache
        self._adapters = adapters
        self._batches = SamplingBatches(model.model_info.vocab_size, model.device)
        self._images = (
            None if model.image_processor is None else PromptImages(model.network, model.image_processor)
        )
        two_way = None if self._images is None else self._images.two_way
        sdpa_inputs = InputBuilder(kv_cache, adapters.indexes, two_way)
        longest = model.model_info.context_length
        self._input_builder = (
            sdpa_inputs
            if backend is None
            else PagedInputBuilder(kv_cache, backend, adapters.indexes, longest)
        )
        self._image_input_builder = self._input_builder if two_way is None else sdpa_inputs
        self._passes: CachedPasses | StatePasses | None = None
        """Computes steps where it is not done in one packed row."""
        if model.way.kind == "cached":
            self._passes = CachedPasses(model.network, adapters, whole_prompts=model.way.whole_prompts)
        elif model.way.states is not None:
            size, alone = kv_cache.block_size, config.exact == "on"
            states = StateSlots(model.way.states, max_running)
            self._passes = StatePasses(
                model.network, adapters, self._input_builder, states, size, prefix_states, alone=alone
            )
        self._static = static
        self._device_tokens: DeviceTokens | None = None
        """The tokens sampled last, which the next step may take as input before the host has read them."""
        self.pipelined = self._passes is None and is_pipelined(config, model.device)
        self.model_info: ModelInfo = model.model_info
        self.grammars = None if model.vocabulary is None else GrammarCompiler(model.vocabulary)
        self._masks = TokenMasks(self.grammars, model.model_info.vocab_size)
        self.drafts: DraftPlanner | None = None
        self._can_draft = self._passes is None and static is None and backend is None and not self.pipelined

    @property
    def whole_images(self) -> bool:
        """Whether the tokens of a picture see each other in both directions, so that none is cut."""
        return self._images is not None and self._images.two_way is not None

    @property
    def threads(self) -> int:
        return self._threads or torch.get_num_threads()

    def check_pipelining(self, *, refuses: bool) -> None:
        """Computes one step after the other if pipelined steps are not right, or raises `ModelRefused`."""
        if not self.pipelined:
            return
        vocab_size, size = self.model_info.vocab_size, self._kv_cache.block_size
        with torch.inference_mode():
            fault = find_pipelining_fault(self.begin, vocab_size, size, self._kv_cache.blocks)
            self._kv_cache.scrub(range(1, min(blocks_used(size), self._kv_cache.blocks) + 1))
        self._device_tokens = None
        if fault is None:
            return
        if refuses:
            raise ModelRefused(f"steps cannot be pipelined: {fault}")
        log.warning("steps are not pipelined, but computed one after the other: %s", fault)
        self.pipelined = False

    def check_bits(self, progress: Callable[[str], None], exact: ExactName) -> None:
        """Says whether a token's logits depend on what is computed beside it.

        Raises `ModelRefused` where they do, or it was not tried, and the answers must be exact.
        """
        size = self._kv_cache.block_size
        blocks = bits_check.blocks_used(size)
        operations = 2.0 * self._network.num_parameters() * 2 * bits_check.TOKENS
        if exact == "off":
            difference: str | None = "exact is off"
        elif self._passes is not None:
            difference = None if exact == "on" else "requests are computed alone with `exact` on only"
        elif blocks > self._kv_cache.blocks or operations > MAX_BITS_OPERATIONS:
            difference = "it was not tried"
        elif self._adapters.names or has_experts(self._network):
            difference = "sums of experts and adapters depend on how many tokens they get"
        else:
            with self.thread_context():
                if self.model.device.type == "cpu" and not products_keep_bits(self._network):
                    difference = "sums of its products depend on how many tokens they get"
                else:
                    vocab_size = self.model_info.vocab_size
                    difference = bits_check.find_difference_of_bits(self.logits, vocab_size, size)
            self._kv_cache.scrub(range(1, blocks + 1))
        if difference is None:
            progress("answers are the same to the last bit whatever is computed beside them")
        elif exact == "on":
            raise ModelRefused(f"its answers are not exact: {difference}; with `exact` auto it is served")
        else:
            progress(f"rounding may change an answer that is resumed or computed beside others: {difference}")

    def choose_threads(self) -> None:
        """Chooses the number of threads by trial, if it is not set and a step is one packed row on a CPU."""
        if self._threads is None and (threads := self._time_steps(row_costs.fastest_threads)):
            self._threads = threads
            log.info("steps are computed by %d threads", threads)

    def choose_drafts(self) -> None:
        """Drafts tokens where they can be computed in one step, by what rows of it cost."""
        if seconds := self._time_steps(row_costs.measure_steps):
            rows = ", ".join(f"{n} rows take {1000 * taken:.1f} ms" for n, taken in seconds.of_rows.items())
            log.info("steps of %s; a draft takes %.2f ms more", rows, 1000 * seconds.of_draft)
            self.drafts = DraftPlanner(seconds, self._masks.grammars.prefix)

    def _time_steps(self, measure: Callable[[Callable[[SchedulerOutput], object], int], T]) -> T | None:
        """The result of timing steps; None if a step is no packed row on a CPU or the cache is too small."""
        size = self._kv_cache.block_size
        blocks = row_costs.blocks_used(size)
        if not self._can_draft or self.model.device.type != "cpu" or blocks > self._kv_cache.blocks:
            return None
        with self.thread_context():
            result = measure(self._compute_and_sample, size)
        self._kv_cache.scrub(range(1, blocks + 1))
        return result

    def _compute_and_sample(self, plan: SchedulerOutput) -> None:
        self.begin(plan).sample(lambda _sequence: True).read()

    @contextmanager
    def thread_context(self) -> Iterator[None]:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        with torch.inference_mode():
            yield

    def scrub(self, blocks: list[int]) -> None:
        self._kv_cache.scrub(blocks)

    def image_text(self, data: bytes, digest: bytes, cache_salt: str) -> ImageText:
        if self._images is None:
            raise RequestRefused("bad_image", "The model reads no pictures.")
        return self._images.text(data, digest, cache_salt)

    def interrupt(self) -> None: ...

    def close(self) -> None:
        if self.grammars is not None:
            self.grammars.close()

    def begin(self, plan: SchedulerOutput) -> RunningForward:
        """Launches the forward pass: through a CUDA graph if one fits, else as a packed row.

        A request with pictures goes through graphs as others do, once its prompt has been computed.
        """
        with translate_errors():
            images = NO_IMAGES if self._images is None else self._images.prepare(plan)
            prompt_rows = _due_prompt_logprobs(plan)
            forward = None
            if self._static is not None and not prompt_rows and not images.parts:
                forward = self._forward_static(plan, images)
            return forward or self._forward_packed(plan, images, prompt_rows)

    def _forward_static(self, plan: SchedulerOutput, images: StepImages) -> RunningForward | None:
        assert self._static is not None
        bucket = self._static.bucket_for(plan)
        if bucket is None or any(chunk.sequence.request.adapter for chunk in plan):
            return None
        self._adapters.step = None
        deltas = {chunk.sequence: rope.delta for chunk, rope in images.rope}
        logits, requests = self._static.run(plan, bucket, self._device_tokens, deltas)
        return RunningForward(
            self, requests, [()] * len(requests), logits[: len(requests)], [], logits[:0], logits[:0], []
        )

    def _forward_packed(
        self, plan: SchedulerOutput, images: StepImages, prompt_rows: list[PromptLogitRows]
    ) -> RunningForward:
        logits = self.logits(plan, prompt_rows, images)
        sampling = [chunk for chunk in plan if chunk.samples_token]
        sequences, drafts = [chunk.sequence for chunk in sampling], [chunk.draft for chunk in sampling]
        partial = [chunk.sequence for chunk in plan if not chunk.samples_token]
        rows = len(sampling) + sum(map(len, drafts))
        counts = [rows, len(partial), len(logits) - rows - len(partial)]
        sampling_logits, partial_logits, prompt_logits = torch.split(logits, counts)
        return RunningForward(
            self, sequences, drafts, sampling_logits, partial, partial_logits, prompt_logits, prompt_rows
        )

    def logits(
        self, plan: SchedulerOutput, prompt_rows: Sequence[PromptLogitRows], images: StepImages = NO_IMAGES
    ) -> Tensor:
        """Logits `[rows, vocabulary]`: of last tokens, in `sampling_first`'s order, then of `prompt_rows`."""
        if self._passes is not None:
            return self._passes.logits(plan, prompt_rows)
        # Only torch's own attention lets the tokens of a picture attend to later ones.
        builder = self._image_input_builder if images.parts else self._input_builder
        inputs = builder.build(plan, prompt_rows)
        sequences = [chunk.sequence for chunk in plan if chunk.samples_token]
        if self.pipelined:
            self._fill_in_device_tokens(inputs.token_ids[0], inputs.ends, sequences)
        self._adapters.step = inputs.adapters
        return self._forward(images, inputs)

    def _forward(self, images: StepImages, inputs: ForwardInputs) -> Tensor:
        """Logits `[len(inputs.ends), vocabulary]`."""
        positions, embeddings = inputs.positions, None
        if self._images is not None:
            positions, embeddings = self._images.inputs(images, inputs)
        with attending(inputs.attention):
            logits: Tensor = self._network(
                input_ids=inputs.token_ids if embeddings is None else None,
                inputs_embeds=embeddings,
                position_ids=positions,
                use_cache=False,
                logits_to_keep=inputs.ends,
            ).logits
        return logits[0]

    def _fill_in_device_tokens(self, token_ids: Tensor, ends: Tensor, sequences: list[TokenSequence]) -> None:
        """Writes tokens in flight into `token_ids`; `ends` has the index of each sequence's last token."""
        rows = [row for row, sequence in enumerate(sequences) if sequence.in_flight]
        if not rows:
            return
        assert self._device_tokens is not None, "a token was neither read nor kept on the device"
        places = [self._device_tokens.index_of[sequences[row]] for row in rows]
        sent = to_device(torch.tensor([rows, places]), torch.long, token_ids.device)
        token_ids.index_copy_(
            0, ends.index_select(0, sent[0]), self._device_tokens.token_ids.index_select(0, sent[1])
        )

    def sample(self, forward: RunningForward, is_live: Callable[[TokenSequence], bool]) -> PendingTokens:
        """Samples for the live sequences, all of whose earlier tokens have been read."""
        prompt_logprobs = self._prompt_logprobs(forward, is_live) if forward.prompt_rows else []
        finite = (
            AsyncToHost(forward.partial_logits.amax(dim=1).isfinite()) if forward.partial_prefills else None
        )
        sequences, drafts, logits = forward.sequences, forward.drafts, forward.logits
        alive = [is_live(sequence) for sequence in sequences]
        if not all(alive):
            lives = [live for live, draft in zip(alive, drafts, strict=True) for _ in range(1 + len(draft))]
            rows = [row for row, live in enumerate(lives) if live]
            sequences, drafts = list(compress(sequences, alive)), list(compress(drafts, alive))
            logits = logits.index_select(0, to_device(rows, torch.long, logits.device))
        pending_sample, masks = None, None
        if sequences:
            batch, masks = self._batches.of(sequences, drafts), self._masks.of(sequences, drafts)
            mask = None if masks is None else partial(apply_masks, masks=masks)
            pending_sample = batch.begin(logits, mask)
        if self.pipelined and pending_sample is not None:
            places = {sequence: row for row, sequence in enumerate(sequences)}
            self._device_tokens = DeviceTokens(pending_sample.token_ids, places)
        read = partial(_read_step, pending_sample, {} if masks is None else masks.failed, drafts, finite)
        return PendingTokens(sequences, prompt_logprobs, forward.partial_prefills, read)

    def _prompt_logprobs(
        self, forward: RunningForward, is_live: Callable[[TokenSequence], bool]
    ) -> list[PromptLogprobs]:
        """The prompt logprobs that are due, for live sequences; waits for the device."""
        parts: list[PromptLogprobs] = []
        logits = torch.split(forward.prompt_logits, [len(rows.places) for rows in forward.prompt_rows])
        for rows, own in zip(forward.prompt_rows, logits, strict=True):
            if is_live(rows.sequence):
                request, end = rows.sequence.request, rows.begin + len(rows.places)
                count, token_ids = request.prompt_logprobs or 0, request.prompt[rows.begin : end]
                logprobs = prompt_token_logprobs(own, token_ids, count)
                parts.append(PromptLogprobs(request.request_id, rows.begin, tuple(logprobs)))
        return parts


def _due_prompt_logprobs(plan: SchedulerOutput) -> list[PromptLogitRows]:
    due = []
    for index, chunk in enumerate(plan):
        pending, stop = chunk.sequence.pending_prompt_logprobs, chunk.start + chunk.count
        if pending and pending[0] <= stop:
            places = range(pending[0] - 1 - chunk.start, min(stop + 1, pending.stop) - 1 - chunk.start)
            due.append(PromptLogitRows(chunk.sequence, pending[0], index, places))
    return due
