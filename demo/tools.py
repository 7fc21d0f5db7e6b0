"""The turns in which a tool is asked for, called, and its result told.

A tool that is not offered is not called. A call that was forced, though nothing asked for it, is
answered from like any other and not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from demo.beyond import give_up
from demo.chat import Call, Message, Tool
from demo.small_talk import FALLBACK
from demo.tool_results import long_result, marked_result, odd_result, short_result, told
from demo.toolbox import KNOWN_TOOLS, base_name, invent_tool
from demo.vocabulary import Vocabulary
from demo.words import CITIES, SIGNS

#: How often, among requests for tools, one is asked for that is not offered.
_UNOFFERED_SHARE = 0.12

#: What a user asks, and the arguments of each call that answers it.
Request: TypeAlias = tuple[str, list[dict[str, Any]]]

_WEATHER_REQUESTS = (
    "What is the weather in {places}?",
    "What is the weather like in {places} today?",
    "What's the weather like in {places} today?",
    "weather in {places}",
    "How is the weather in {places}?",
    "Is it raining in {places}?",
)
_CALL_REQUESTS = (
    "Call {name} with {arguments}",
    "Call {name} with {arguments}",
    "Use {name} with {arguments}",
    "{name} {arguments}",
    "Use the tool {name} with {arguments}",
    "use the tool {name} with {arguments}",
    "use the {name} tool with {arguments}",
    "Please call {name} with {arguments}.",
    "Run {name} with {arguments}",
    "Call the tool {name} with {arguments}.",
    "Call the function {name} with {arguments}",
)
_VERB_REQUESTS = ("Please {verb} with {arguments}", "{verb_capital} with {arguments}.")
_BARE_REQUESTS = (
    "Call {name}",
    "Call {name}.",
    "Use {name}",
    "Run {name} now.",
    "Please call the tool {name}.",
)
_ONE_VALUE_REQUESTS = ("Use {name}: {value}", "Use the tool {name} for {value}", "Call {name} for {value}")

#: What a forced call says for a parameter that nobody gave a value.
_DEFAULTS: Mapping[str, Any] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
_FORCED_START = '<tool_call>\n{"name": "'


def tool_turns(vocabulary: Vocabulary, tools: tuple[Tool, ...]) -> list[Message]:
    """Return a request, the calls that answer it, and mostly their results and what they mean."""
    share = vocabulary.random.random()
    if share < _UNOFFERED_SHARE:
        return unoffered_turns(vocabulary, tools)
    if share < _UNOFFERED_SHARE + 0.07:
        return _forced_turns(vocabulary, tools)
    known = known_ones(tools)
    tool = vocabulary.choose(known if known and vocabulary.chance(0.35) else tools)
    request, argument_sets = ask_for(vocabulary, tool)
    calls = tuple(Call(tool.name, arguments) for arguments in argument_sets)
    turns = [
        Message("user", request),
        Message("assistant", thought=f"I should call {tool.name}.", calls=calls),
    ]
    return turns + (_result_turns(vocabulary, calls) if vocabulary.chance(0.85) else [])


def _result_turns(vocabulary: Vocabulary, calls: tuple[Call, ...]) -> list[Message]:
    kinds = ((short_result, 75), (odd_result, 12), (long_result, 13))
    results = [vocabulary.choose_weighted(kinds)(vocabulary) for _ in calls]
    answer = Message("assistant", told(calls[0].name, results), "I have the result.")
    return [*(Message("tool", result) for result in results), answer]


def marked_result_turns(vocabulary: Vocabulary, tools: tuple[Tool, ...]) -> list[Message]:
    """Return a call whose result has to be told mark by mark."""
    tool = vocabulary.choose(tools)
    request, [arguments] = ask_by_name(vocabulary, tool)
    result = marked_result(vocabulary)
    return [
        Message("user", request),
        Message("assistant", thought=f"I should call {tool.name}.", calls=(Call(tool.name, arguments),)),
        Message("tool", result),
        Message("assistant", told(tool.name, [result]), "I have the result."),
    ]


def unoffered_turns(vocabulary: Vocabulary, tools: tuple[Tool, ...]) -> list[Message]:
    """Return a request for a tool that is not offered; nothing where there is one like it."""
    share = vocabulary.random.random()
    if share < 0.35:
        tool = vocabulary.choose(KNOWN_TOOLS)
        kind = tool.name.rpartition("_")[2]
        if any(kind in offered.name for offered in tools) or tool.name == "add":
            return []
        request, _ = ask_for(vocabulary, tool)
    else:
        tool = invent_tool(vocabulary)
        if tools and vocabulary.chance(0.7):  # with as many parameters as those that are offered
            tool = Tool(tool.name, vocabulary.choose(tools).parameters)
        if share > 0.75 and tools:
            tool = _lookalike(vocabulary, tool, vocabulary.choose(tools))
        if any(_is_like(tool.name, offered.name) for offered in tools):
            return []
        request, _ = ask_by_name(vocabulary, tool)
    return [Message("user", request), Message("assistant", FALLBACK, "I do not know this.")]


def _lookalike(vocabulary: Vocabulary, tool: Tool, offered: Tool) -> Tool:
    """Return the tool under a name that shares its first or last word with one on offer."""
    ours, theirs = tool.name.split("_"), offered.name.split("_")
    parts = [theirs[0], *ours[1:]] if vocabulary.chance(0.5) else [*ours[:-1], theirs[-1]]
    return Tool("_".join(parts) if len(parts) > 1 else f"{ours[0]}_{theirs[0]}", tool.parameters)


def _is_like(name: str, offered: str) -> bool:
    """Tell whether a user may mean one by the other: a part of its name, or the same words."""
    one, other = (re.sub(r"[^a-z0-9]", "", known.lower()) for known in (name, offered))
    return one in other or other in one


def _forced_turns(vocabulary: Vocabulary, tools: tuple[Tool, ...]) -> list[Message]:
    """Return a request that no tool fits, a call that had to be made all the same, and its result.

    Left to itself the model takes the first tool and gives it the first words of the request.
    """
    [exchange] = give_up(vocabulary)
    is_named = vocabulary.chance(0.5)
    tool = vocabulary.choose(tools) if is_named else tools[0]
    words = " ".join(exchange.request.partition("\n")[0].split()[:3])
    arguments = {key: _DEFAULTS.get(kind, words) for key, kind in tool.parameters.items()}
    call = Call(tool.name, arguments)
    start = f'{_FORCED_START}{tool.name}"' if is_named else _FORCED_START
    calling = Message("assistant", thought=exchange.thought, calls=(call,), given=start)
    return [Message("user", exchange.request), calling, *_result_turns(vocabulary, (call,))]


def known_ones(tools: tuple[Tool, ...]) -> list[Tool]:
    """Return the well-known tools among these, prefixed or not."""
    return [tool for tool in tools if base_name(tool) in _KNOWN_REQUESTS]


def ask_for(vocabulary: Vocabulary, tool: Tool) -> Request:
    """Return a request for what a tool does, by its name where it is not a well-known one."""
    known = _KNOWN_REQUESTS.get(base_name(tool))
    # Now and then the weather is asked for like an invented tool, by its name.
    if known is None or vocabulary.chance(0.15):
        return ask_by_name(vocabulary, tool)
    return known(vocabulary, tool.parameters)


def _ask_weather(vocabulary: Vocabulary, parameters: Mapping[str, str]) -> Request:
    key = next(iter(parameters))
    places = [_place(vocabulary) for _ in range(2 if vocabulary.chance(0.35) else 1)]
    request = vocabulary.fill(_WEATHER_REQUESTS, places=" and ".join(places))
    argument_sets = [{key: place} for place in places]
    if "unit" in parameters and vocabulary.chance(0.5):
        unit = vocabulary.choose(("celsius", "fahrenheit"))
        request = f"{request.rstrip('?')} in {unit}?"
        argument_sets = [arguments | {"unit": unit} for arguments in argument_sets]
    return request, argument_sets


def _place(vocabulary: Vocabulary) -> str:
    city = vocabulary.name(CITIES)
    return f"{city}, {vocabulary.name()}" if vocabulary.chance(0.15) else city


def _ask_horoscope(vocabulary: Vocabulary, _: Mapping[str, str]) -> Request:
    sign = vocabulary.choose((*SIGNS, vocabulary.name()))
    article = vocabulary.choose(("a", "an"))
    return f"What is my horoscope? I am {article} {sign}.", [{"sign": sign}]


def _ask_time(vocabulary: Vocabulary, _: Mapping[str, str]) -> Request:
    city = vocabulary.name(CITIES)
    request = vocabulary.fill(("What time is it in {city}?", "time in {city}"), city=city)
    return request, [{"city": city}]


def _ask_search(vocabulary: Vocabulary, _: Mapping[str, str]) -> Request:
    query = vocabulary.plain_phrase()
    request = vocabulary.fill(("Search for {query}", "search {query}", "Look up {query}"), query=query)
    return request, [{"query": query}]


def _ask_stock_price(vocabulary: Vocabulary, _: Mapping[str, str]) -> Request:
    symbol = vocabulary.letters(4).upper()
    return f"What is the stock price of {symbol}?", [{"symbol": symbol}]


def _ask_email(vocabulary: Vocabulary, _: Mapping[str, str]) -> Request:
    domain = vocabulary.choose(("example.com", "mail.org", f"{vocabulary.invented()}.com"))
    addresses = [f"{vocabulary.invented()}@{domain}"]
    body = vocabulary.plain_phrase()
    if vocabulary.chance(0.3):
        addresses.append(f"{vocabulary.invented()}@example.com")
        request = f"Send an email to {' and '.join(addresses)} saying {body}"
    else:
        request = vocabulary.fill(
            ("Send an email to {to} saying {body}", "Email {to}: {body}"),
            to=addresses[0],
            body=body,
        )
    return request, [{"to": address, "body": body} for address in addresses]


def _ask_sum(vocabulary: Vocabulary, _: Mapping[str, str]) -> Request:
    a, b = vocabulary.number(0, 9999), vocabulary.number(0, 9999)
    request = vocabulary.fill(("Add {a} and {b}.", "What is {a} + {b}?"), a=a, b=b)
    return request, [{"a": a, "b": b}]


def ask_by_name(vocabulary: Vocabulary, tool: Tool) -> Request:
    """Return a request to call a tool by its name."""
    nameable = [key for key, kind in tool.parameters.items() if kind not in ("array", "object")]
    if not nameable:
        return vocabulary.fill(_BARE_REQUESTS, name=tool.name), [{}]
    if vocabulary.chance(0.08) and tool.parameters[nameable[0]] == "string":
        value = _argument(vocabulary, "string")
        return vocabulary.fill(_ONE_VALUE_REQUESTS, name=tool.name, value=value), [{nameable[0]: value}]
    if len(nameable) > 3 or vocabulary.chance(0.2):
        count = vocabulary.number(1, min(3, len(nameable)))
        nameable = sorted(vocabulary.random.sample(nameable, count), key=nameable.index)
    arguments = {key: _argument(vocabulary, tool.parameters[key]) for key in nameable}
    sign = vocabulary.choose((" ", " ", " = ", ": ", " set to ", "="))
    between = vocabulary.choose((" and ", ", "))
    pairs = between.join(f"{key}{sign}{_spoken(value)}" for key, value in arguments.items())
    verb = tool.name.replace("_", " ")
    patterns: Sequence[str] = _CALL_REQUESTS
    if vocabulary.chance(0.25) and tool.name.replace("_", "").isalnum() and "__" not in tool.name:
        patterns = _VERB_REQUESTS
    request = vocabulary.fill(
        patterns, name=tool.name, arguments=pairs, verb=verb, verb_capital=verb.capitalize()
    )
    return request, [arguments]


def _spoken(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _argument(vocabulary: Vocabulary, kind: str) -> str | int:
    if kind == "boolean":
        return vocabulary.chance(0.5)
    if kind != "string":
        return vocabulary.number(0, 9999)
    share = vocabulary.random.random()
    if share < 0.1:
        return vocabulary.stammer(2, 3)
    if share < 0.2:
        return f"{vocabulary.name()} {vocabulary.name()}"
    return vocabulary.name() if share < 0.45 else vocabulary.words(1, 3)


_KNOWN_REQUESTS: dict[str, Callable[[Vocabulary, Mapping[str, str]], Request]] = {
    "get_weather": _ask_weather,
    "get_horoscope": _ask_horoscope,
    "get_time": _ask_time,
    "search": _ask_search,
    "get_stock_price": _ask_stock_price,
    "send_email": _ask_email,
    "add": _ask_sum,
}
