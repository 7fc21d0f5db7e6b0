"""Drills: requests for tools, one after the other, without results or other talk.

Which tools are on offer, and under which names, is the hardest thing for a model of this size, and in
the mix of all tasks it meets too few requests for tools to learn it.
"""

from __future__ import annotations

from demo.chat import Call, Conversation, Message, Tool
from demo.conversations import Emphasis, random_conversation
from demo.settings import Setting
from demo.toolbox import KNOWN_TOOLS, offer_tools, prefix
from demo.tools import ask_by_name, ask_for, known_ones, unoffered_turns
from demo.vocabulary import Vocabulary

#: How many tools are on offer, where no setting says so.
_COUNTS = (1, 1, 2, 2, 2, 3, 3, 4, 6, 10)
_UNOFFERED_SHARE = 0.4


def drill_or_conversation(
    vocabulary: Vocabulary, emphasis: Emphasis, setting: Setting | None = None
) -> Conversation:
    """Return a drill as often as ``drill`` is emphasised, from 0 to 1, else any conversation."""
    if vocabulary.chance(emphasis.get(drill, 0)) and (setting is None or setting.tools):
        return drill(vocabulary, setting, emphasis.get(unoffered_turns, 1))
    return random_conversation(vocabulary, emphasis, setting)


def drill(vocabulary: Vocabulary, setting: Setting | None = None, unoffered: float = 1) -> Conversation:
    """Return one to three requests for tools, offered or not.

    ``unoffered`` is how many times as often as usual they are not.
    """
    vocabulary.begin_conversation()
    tools = setting.tools if setting else _offered(vocabulary)
    messages: list[Message] = []
    if setting and setting.instruction:
        messages.append(Message("system", setting.instruction))
    is_said = False
    wanted = vocabulary.choose((1, 1, 2, 3))
    while not is_said or wanted > 0:
        turns = _turns(vocabulary, tools, _UNOFFERED_SHARE * unoffered)
        messages += turns
        is_said = is_said or bool(turns)
        wanted -= 1
    return Conversation(tuple(messages), tools)


def _offered(vocabulary: Vocabulary) -> tuple[Tool, ...]:
    """Return some tools, mostly with few parameters, and often a well-known one among them."""
    tools = list(offer_tools(vocabulary, vocabulary.choose(_COUNTS)))
    if vocabulary.chance(0.75):
        tools = [tool if known_ones((tool,)) else _shortened(vocabulary, tool) for tool in tools]
    if vocabulary.chance(0.5) and not known_ones(tuple(tools)):
        tool = vocabulary.choose(KNOWN_TOOLS)
        name = prefix(vocabulary) + tool.name if vocabulary.chance(0.6) else tool.name
        tools.insert(vocabulary.number(0, len(tools)), Tool(name, tool.parameters))
    return tuple(tools)


def _shortened(vocabulary: Vocabulary, tool: Tool) -> Tool:
    count = vocabulary.choose((0, 0, 1))
    return Tool(tool.name, dict([*tool.parameters.items()][:count]))


def _turns(vocabulary: Vocabulary, tools: tuple[Tool, ...], unoffered_share: float) -> list[Message]:
    if vocabulary.chance(unoffered_share):
        return unoffered_turns(vocabulary, tools)
    known = known_ones(tools)
    if known and vocabulary.chance(0.6):
        tool = vocabulary.choose(known)
        request, argument_sets = ask_for(vocabulary, tool)
    else:
        tool = vocabulary.choose(tools)
        request, argument_sets = ask_by_name(vocabulary, tool)
    calls = tuple(Call(tool.name, arguments) for arguments in argument_sets)
    return [
        Message("user", request),
        Message("assistant", thought=f"I should call {tool.name}.", calls=calls),
    ]
