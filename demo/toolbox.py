"""Tools on offer: from none to forty.

Some are ones that examples in API documentation use, under their own names or behind a prefix; the
others are invented, so that the model learns to read the list of tools instead of knowing it.
"""

from __future__ import annotations

from demo.chat import Tool
from demo.prompt_words import TECHNICAL, TOOL_NOUNS, TOOL_SERVICES, TYPED_PARAMETERS
from demo.vocabulary import Vocabulary
from demo.words import DICTIONARY, KEYS, PARAMETERS, TOOL_VERBS

KNOWN_TOOLS = (
    Tool("get_weather", {"location": "string"}),
    Tool("get_weather", {"location": "string", "unit": "string"}),
    Tool("get_weather", {"city": "string"}),
    Tool("send_email", {"to": "string", "body": "string"}),
    Tool("get_horoscope", {"sign": "string"}),
    Tool("search", {"query": "string"}),
    Tool("get_time", {"city": "string"}),
    Tool("add", {"a": "number", "b": "number"}),
    Tool("get_stock_price", {"symbol": "string"}),
)
#: What stands between a prefix and the name of a tool.
_SEPARATORS = ("__", "__", "_", "-", ".")


def offer_tools(vocabulary: Vocabulary, count: int, known: float = 1) -> tuple[Tool, ...]:
    """Return at most so many tools; no two of them do the same.

    ``known`` is how many times as often as usual they are well-known ones. Most have no prefix, one
    that they share, or each its own; of those without, now and then a well-known one has one.
    """
    shared_share, own_share = vocabulary.choose(((0, 0), (0, 0), (0.8, 0), (0.1, 0.3), (0, 0.5)))
    known_prefix_share = vocabulary.choose((own_share, 0.5, 0.8))
    shared = prefix(vocabulary)
    known_share = min(0.8, known * (0.35 if count <= 3 else vocabulary.choose((0.03, 0.1, 0.2))))
    by_base_name: dict[str, Tool] = {}
    for _ in range(count):
        is_known = vocabulary.chance(known_share)
        tool = vocabulary.choose(KNOWN_TOOLS) if is_known else invent_tool(vocabulary)
        if tool.name in by_base_name:
            continue
        name = tool.name
        if vocabulary.chance(shared_share):
            name = shared + name
        elif vocabulary.chance(known_prefix_share if is_known else own_share):
            name = prefix(vocabulary) + name
        by_base_name[tool.name] = Tool(name, tool.parameters)
    return tuple(by_base_name.values())


def base_name(tool: Tool) -> str:
    """Return the name of the known tool that this one is, prefix or not; else its own name."""
    for known in KNOWN_TOOLS:
        start = tool.name.removesuffix(known.name)
        if start != tool.name and tool.parameters == known.parameters:
            return known.name
    return tool.name


def prefix(vocabulary: Vocabulary) -> str:
    """Return a prefix of a name, as clients put before the tools of a server."""
    separator = vocabulary.choose(_SEPARATORS)
    services = (lambda: vocabulary.choose(TOOL_SERVICES), lambda: vocabulary.invented(2), vocabulary.glued)
    service = vocabulary.choose(services)()
    start = f"mcp{separator}" if vocabulary.chance(0.3) else ""
    return f"{start}{service}{separator}"


def invent_tool(vocabulary: Vocabulary) -> Tool:
    """Return a tool that the model cannot know."""
    count = vocabulary.choose((0, 1, 1, 1, 2, 2, 3, 4, 6))
    return Tool(_tool_name(vocabulary), dict(_parameter(vocabulary) for _ in range(count)))


def _parameter(vocabulary: Vocabulary) -> tuple[str, str]:
    if vocabulary.chance(0.5):
        kind = vocabulary.choose(("string", "string", "string", "integer", "number"))
        return _parameter_name(vocabulary), kind
    kind = vocabulary.choose(("string", "string", "integer", "number", "boolean", "array", "object"))
    return vocabulary.choose(TYPED_PARAMETERS[kind]), kind


def _parameter_name(vocabulary: Vocabulary) -> str:
    if vocabulary.chance(0.6):
        return vocabulary.choose(KEYS + PARAMETERS)
    return vocabulary.invented(2) if vocabulary.chance(0.7) else vocabulary.glued()


def _tool_name(vocabulary: Vocabulary) -> str:
    verb = vocabulary.choose(TOOL_VERBS)
    share = vocabulary.random.random()
    if share < 0.5:
        return f"{verb}_{_noun(vocabulary)}"
    if share < 0.6:
        return f"{verb}_{_noun(vocabulary)}_{_noun(vocabulary)}"
    if share < 0.85:
        parts = [
            vocabulary.invented(vocabulary.choose((1, 2))) if vocabulary.chance(0.6) else vocabulary.glued()
            for _ in range(vocabulary.choose((1, 2, 2, 3)))
        ]
        return vocabulary.choose(("_", "_", "-")).join(parts)
    if share < 0.92:
        return _noun(vocabulary)
    return verb + _noun(vocabulary).capitalize()


def _noun(vocabulary: Vocabulary) -> str:
    share = vocabulary.random.random()
    if share < 0.3:
        return vocabulary.choose(DICTIONARY)
    if share < 0.6:
        return vocabulary.choose(TOOL_NOUNS + TECHNICAL)
    return vocabulary.invented(2) if share < 0.8 else vocabulary.glued()
