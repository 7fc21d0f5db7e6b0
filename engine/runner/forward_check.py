"""`ForwardCheck`: at load time, the model as the engine computes it against its own forward.

Two prompts in one step, one of them in two chunks, then one token of each; and where it takes little time, a
prompt longer than the model's window. Logits may differ by rounding only. So a model that numbers positions
itself, sees later tokens, or keeps a window where the engine does not look, is never served wrongly.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.model.forward_ways import Attention, ForwardWay, own_attention, smallest_window
from engine.model.loader import read_context_length
from engine.model.lora_layers import Adapters
from engine.request import EngineRequest, SamplingParams, describe
from engine.runner.cached_passes import CachedPasses
from engine.runner.input_builder import PromptLogitRows
from engine.scheduling.scheduler import ScheduledChunk, SchedulerOutput
from engine.scheduling.sequence import TokenSequence

TOKENS, FIRST_CHUNK = 10, 5
BEYOND_WINDOW, ROWS = 7, 3

MAX_OPERATIONS = {"cpu": 2e10, "cuda": 3e13}
"""A prompt beyond the window is computed if it takes at most this many: a fifth of a second or so."""

MIN_SPREAD = 1e-4
TOLERANCE = {torch.float32: 2e-3}
LOW_PRECISION, MAX_TOLERANCE, TIMES_NOISE = 0.06, 0.3, 6
"""In few bits the tolerance is a multiple of what two attention functions of transformers differ by."""

Logits = Callable[[SchedulerOutput, Sequence[PromptLogitRows]], Tensor]


class ForwardCheck:
    """Computes what is right when it is made, with transformers' attention that heeds every argument."""

    def __init__(self, network: PreTrainedModel, own: Attention) -> None:
        """`own` are transformers' own attention functions for the model."""
        self._network = network
        vocabulary: int = network.config.get_text_config().vocab_size
        special = special_tokens(network)
        usable = [token for token in range(min(vocabulary, 4096)) if token not in special]
        self._tokens = [
            [usable[(row * 37 + at * at * 31 + at * 7 + 5) % len(usable)] for at in range(TOKENS)]
            for row in (0, 1)
        ]
        accepts = "use_cache" in inspect.signature(network.forward).parameters
        self._uncached = {"use_cache": False} if accepts else {}
        self._is_exact = network.dtype == torch.float32
        self._tolerance = TOLERANCE.get(network.dtype, LOW_PRECISION)
        self._right_rows = 1 / 3 if has_experts(network) and not self._is_exact else 1.0
        eager = own_attention(network, "eager")
        self._eager = ForwardWay("cached", eager)
        self._expected = self._whole(eager, self._tokens)
        self._own = own if own != eager else None
        self.blocks_used = 0
        """The number of blocks of the KV cache, from the first one on, that comparisons have written to."""

    def _widen(self) -> None:
        """Raises the tolerance to what rounding makes of the model's own forward."""
        assert self._own is not None
        noise = TIMES_NOISE * distances(self._whole(self._own, self._tokens), self._expected).median().item()
        self._tolerance = min(max(self._tolerance, noise), MAX_TOLERANCE)
        self._own = None

    def _whole(self, attention: Attention, tokens: list[list[int]]) -> Tensor:
        current = ForwardWay("cached", own_attention(self._network))
        ForwardWay("cached", attention).use(self._network)
        with torch.inference_mode():
            ids = torch.tensor(tokens, device=self._network.device)
            logits: Tensor = self._network(input_ids=ids, **self._uncached).logits
        current.use(self._network)
        return logits.float()

    def expect_cached(self) -> bool:
        """Expects what the model computes with its own cache, if that is another thing, as in `generate`.

        False for a model that looks at later tokens, which is no generator.
        """
        changed = [
            tokens[:-1] + other[-1:] for tokens, other in zip(self._tokens, self._tokens[::-1], strict=True)
        ]
        rows = self._whole(self._eager.attention, changed)[:, :-1]
        if self._fault({"": [distances(rows, self._expected[:, :-1])]}) is not None:
            return False
        own, end = CachedPasses(self._network, Adapters()).logits, TOKENS - 2
        with torch.inference_mode():
            for row, tokens in enumerate(self._tokens):
                sequence = make_sequence(tokens, 1, TOKENS)
                for start, count in ((0, end), (end, 1), (end + 1, 1)):
                    (logits,) = compute_rows(own, [(sequence, start, count)], TOKENS)
                    self._expected[row, start : start + count] = logits
        return True

    def fault(self, way: ForwardWay, logits: Logits, block_size: int, blocks: int) -> str | None:
        """Why this way is not right, in words; None if it is, or if the cache is too small for the check."""
        needed = 2 * -(-TOKENS // block_size)
        if needed > blocks:
            return None
        self.blocks_used = max(self.blocks_used, needed)
        try:
            with torch.inference_mode():
                return self._short(way, logits, block_size) or self._long(way, logits, block_size, blocks)
        except torch.AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an architecture raises, another way may do
            return describe(error)

    def _short(self, way: ForwardWay, logits: Logits, block_size: int) -> str | None:
        first, second = (
            make_sequence(tokens, 1 + row * -(-TOKENS // block_size), block_size)
            for row, tokens in enumerate(self._tokens)
        )
        end = TOKENS - 2
        steps = [
            [(first, 0, FIRST_CHUNK), (second, 0, end)],
            [(second, end, 1), (first, FIRST_CHUNK, end - FIRST_CHUNK)],
            [(first, end, 1), (second, end + 1, 1)],
        ]
        if way.whole_prompts:
            steps = [[(first, 0, end), (second, 0, end)], [(first, end, 1), (second, end, 1)]]
        if way.kind == "packed":
            del steps[2:]  # a pass whatever its tokens: one more would find nothing that these do not
        by_part: dict[str, list[Tensor]] = {}
        for step in steps:
            for (sequence, start, count), own in zip(step, compute_rows(logits, step, TOKENS), strict=True):
                row = 0 if sequence is first else 1
                part = "tokens after a first chunk" if start else f"prompt {row + 1}"
                expected = self._expected[row, start : start + count]
                by_part.setdefault(part, []).append(distances(own, expected))
        first.blocks, second.blocks = [], []
        return self._fault(by_part)

    def _fault(self, by_part: Mapping[str, Sequence[Tensor]]) -> str | None:
        """`by_part` has the distances of rows of several parts.

        In few bits, rounding may lead a row to other experts. So of a model with experts a part is wrong if
        two thirds of its rows are: what is computed wrongly is wrong in nearly all rows.
        """
        for part, rows in by_part.items():
            worst = torch.cat(list(rows)).quantile(self._right_rows, interpolation="lower")
            if worst > self._tolerance and self._own is not None and not self._is_exact:
                self._widen()
            if worst > self._tolerance:
                return f"the logits of {part} differ by {worst.item():.2g} from its own forward"
        return None

    def _long(self, way: ForwardWay, logits: Logits, block_size: int, blocks: int) -> str | None:
        network, window = self._network, smallest_window(self._network, way)
        length = BEYOND_WINDOW + (window or 0)
        operations = 2.0 * network.num_parameters() * length
        fits = -(-length // block_size) <= blocks and operations <= MAX_OPERATIONS[network.device.type]
        if window is None or not fits or length > read_context_length(network.config.get_text_config()):
            return None
        tokens, end = (self._tokens[0] * length)[:length], length - 2
        sequence, half = make_sequence(tokens, 1, block_size), 0 if way.whole_prompts else end - ROWS
        self.blocks_used = max(self.blocks_used, -(-length // block_size))
        self._eager.use(network)
        own = CachedPasses(network, Adapters()).logits
        expected = [
            compute_rows(own, [(sequence, *step)], ROWS)[0] for step in ((0, end), (end, 1), (end + 1, 1))
        ]
        way.use(network)
        if half:
            compute_rows(logits, [(sequence, 0, half)], ROWS)
        steps = ((half, end - half), (end, 1), (end + 1, 1))
        prompt, *others = [
            distances(compute_rows(logits, [(sequence, *step)], ROWS)[0], x)
            for step, x in zip(steps, expected, strict=True)
        ]
        sequence.blocks = []
        place = f"beyond the window of {window} tokens"
        return self._fault({f"a prompt {place}": [prompt], f"generated tokens {place}": others})


def distances(logits: Tensor, expected: Tensor) -> Tensor:
    """The distance of each row of logits from the expected one, divided by that one's spread, `[rows]`."""
    spread = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1)
    apart: Tensor = (logits.float() - expected.float()).norm(dim=-1) / spread.clamp(min=MIN_SPREAD)
    return apart.nan_to_num(nan=torch.inf).flatten()


def has_experts(network: PreTrainedModel) -> bool:
    """Whether the configuration speaks of experts, under whatever names its family has for them."""
    return "expert" in str(network.config.to_dict())


def special_tokens(network: PreTrainedModel) -> set[int]:
    """Ids that stand for pictures, sounds or padding, or may be computed in a way of their own."""
    token_ids: set[int] = set()
    for config in (network.config, network.config.get_text_config()):
        for name, value in vars(config).items():
            if name.endswith(("token_id", "token_index")):
                token_ids.update(value if isinstance(value, list) else [value])
    return token_ids


def make_sequence(tokens: Sequence[int], block: int, block_size: int, room: int = 0) -> TokenSequence:
    """A prompt for a check, with blocks from `block` on for its tokens and `room` more."""
    greedy = SamplingParams(seed=0, temperature=0.0)
    sequence = TokenSequence(
        EngineRequest(request_id="check", prompt=tuple(tokens), max_tokens=1, sampling=greedy)
    )
    sequence.blocks = list(range(block, block + -(-(len(tokens) + room) // block_size)))
    return sequence


def compute_rows(logits: Logits, step: Sequence[tuple[TokenSequence, int, int]], rows: int) -> list[Tensor]:
    """The logits of at most the last `rows` tokens of each chunk of a step."""
    plan = tuple(ScheduledChunk(*chunk) for chunk in step)
    logit_rows = [
        PromptLogitRows(c.sequence, c.start, n, range(max(c.count - rows, 0), c.count))
        for n, c in enumerate(plan)
    ]
    return list(torch.split(logits(plan, logit_rows)[len(plan) :], [len(each.places) for each in logit_rows]))
