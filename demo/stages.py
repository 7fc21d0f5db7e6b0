"""The stages of training: how many tokens, at which rate, and what is said more often in each."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

from demo.batches import LongSettings
from demo.conversations import Emphasis
from demo.drills import drill
from demo.facts import random_fact
from demo.tasks import add_or_subtract, count, echo, extract_event, repeat, write_json
from demo.toolbox import offer_tools
from demo.tools import marked_result_turns, tool_turns, unoffered_turns


@dataclass(frozen=True, slots=True)
class Stage:
    """One stretch of training; optimisers start afresh in each, the weights do not."""

    name: str
    tokens: int
    batch_tokens: int
    learning_rate: float
    seed: int
    #: How much its weights count in the average that is shipped.
    share: float
    emphasis: Emphasis = field(default_factory=dict)
    long: LongSettings | None = None
    #: Start from the average of the stages before instead of the last one's weights.
    starts_from_average: bool = False
    #: Go on from the average of the stages before with one more layer; they count no more.
    deepens: bool = False
    #: Leave the stages before out of the average from here on.
    renews_average: bool = False


#: Sums are not copied but learned by heart, one pair of numbers after another, and which values of
#: JSON go without quotes is a rule with exceptions: both need more examples than the mix has.
_EMPHASIS: Emphasis = MappingProxyType({add_or_subtract: 4.0, write_json: 1.5})
#: Which tools are offered, and under which names, is learned last.
_EMPHASIS_ON_TOOLS: Emphasis = MappingProxyType({**_EMPHASIS, unoffered_turns: 4.0, offer_tools: 2.0})
_EMPHASIS_ON_MANNERS: Emphasis = MappingProxyType(
    {**_EMPHASIS, unoffered_turns: 9.0, offer_tools: 3.0, marked_result_turns: 3.0}
)
#: Counting suffers most from all that is learned besides.
_EMPHASIS_ON_PRACTICE: Emphasis = MappingProxyType(
    {
        **_EMPHASIS,
        count: 4.0,
        repeat: 3.0,
        extract_event: 2.5,
        unoffered_turns: 3.0,
        offer_tools: 2.0,
        marked_result_turns: 2.0,
    }
)
_EMPHASIS_ON_COUNTING: Emphasis = MappingProxyType({**_EMPHASIS_ON_PRACTICE, count: 12.0, extract_event: 8.0})
#: Nothing but requests for tools, until names are looked up in the list.
_EMPHASIS_ON_NAMES: Emphasis = MappingProxyType({drill: 0.85, add_or_subtract: 3.0, tool_turns: 1.5})
#: All of it, and most of what is hardest.
_EMPHASIS_ON_ALL: Emphasis = MappingProxyType(
    {
        drill: 0.3,
        add_or_subtract: 3.0,
        repeat: 2.5,
        extract_event: 3.0,
        count: 2.0,
        write_json: 1.5,
        random_fact: 1.0,
        marked_result_turns: 1.0,
        tool_turns: 1.2,
    }
)
#: The same, refusals aside: before names are looked up reliably, too many make it refuse what it can.
_EMPHASIS_ON_OLD: Emphasis = MappingProxyType(
    {
        **_EMPHASIS_ON_ALL,
        drill: 0.15,
        unoffered_turns: 0.3,
        add_or_subtract: 4.0,
        echo: 3.0,
        repeat: 3.0,
        extract_event: 2.0,
        write_json: 2.5,
        random_fact: 0.7,
        tool_turns: 1.3,
    }
)

_EMPHASIS_ON_COPIES: Emphasis = MappingProxyType(
    {
        **_EMPHASIS_ON_OLD,
        drill: 0.1,
        echo: 5.0,
        repeat: 6.0,
        extract_event: 5.0,
        tool_turns: 1.6,
    }
)
_EMPHASIS_ON_EVENTS: Emphasis = MappingProxyType(
    {
        **_EMPHASIS_ON_COPIES,
        add_or_subtract: 3.0,
        echo: 7.0,
        repeat: 5.0,
        extract_event: 8.0,
        count: 5.0,
        tool_turns: 3.0,
    }
)

#: Copying is learned first, which most answers are; sums follow, and then prompts of many pages.
STAGES = (
    Stage("learn", 9_000_000, 4096, 5e-3, seed=1, share=1, long=LongSettings(0.1, 200, 1500)),
    Stage(
        "improve",
        6_500_000,
        6144,
        3e-3,
        seed=2,
        share=2,
        emphasis=_EMPHASIS,
        long=LongSettings(0.15, 300, 4000),
    ),
    Stage(
        "finish",
        4_000_000,
        6144,
        3e-3,
        seed=3,
        share=2,
        emphasis=_EMPHASIS_ON_TOOLS,
        long=LongSettings(0.5, 1000, 11_000),
    ),
    Stage(
        "manners",
        3_200_000,
        6144,
        3e-3,
        seed=4,
        share=2,
        emphasis=_EMPHASIS_ON_MANNERS,
        long=LongSettings(0.25, 300, 9000),
    ),
    Stage(
        "practise",
        2_400_000,
        6144,
        2e-3,
        seed=5,
        share=7,
        emphasis=_EMPHASIS_ON_PRACTICE,
        long=LongSettings(0.12, 1000, 9000),
        starts_from_average=True,
    ),
    Stage(
        "count",
        1_000_000,
        4096,
        1.5e-3,
        seed=6,
        share=56,
        emphasis=_EMPHASIS_ON_COUNTING,
        starts_from_average=True,
    ),
    Stage("match", 1_600_000, 2048, 3e-3, seed=12, share=1, emphasis=_EMPHASIS_ON_NAMES, deepens=True),
    Stage(
        "polish",
        8_000_000,
        4096,
        2.5e-3,
        seed=13,
        share=1,
        emphasis=_EMPHASIS_ON_ALL,
        long=LongSettings(0.15, 300, 9000),
        renews_average=True,
    ),
    Stage(
        "settle",
        6_000_000,
        4096,
        1.5e-3,
        seed=14,
        share=1,
        emphasis=_EMPHASIS_ON_OLD,
        long=LongSettings(0.12, 300, 9000),
        renews_average=True,
    ),
    Stage(
        "smooth",
        3_500_000,
        4096,
        8e-4,
        seed=16,
        share=13,
        emphasis=_EMPHASIS_ON_COPIES,
        long=LongSettings(0.08, 300, 9000),
        renews_average=True,
    ),
    Stage(
        "even",
        3_000_000,
        4096,
        1e-3,
        seed=17,
        share=7,
        emphasis=_EMPHASIS_ON_EVENTS,
        long=LongSettings(0.06, 300, 9000),
    ),
)
