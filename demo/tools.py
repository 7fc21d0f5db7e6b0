"""Tools on offer, and the turns in which one is called and its result told.

Half of the tools are ones that examples in API documentation use; the other half are invented, so
that the model learns to read the list of tools instead of knowing it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from demo.chat import Call, Message, Tool
from demo.tasks import as_json
from demo.vocabulary import Vocabulary
from demo.words import CITIES, DICTIONARY, KEYS, PARAMETERS, RESULT_KEYS, SIGNS, TOOL_VERBS

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
    "Use {name} with {arguments}",
    "{name} {arguments}",
    "Please {verb} with {arguments}",
    "{verb_capital} with {arguments}.",
)


def offer_tools(vocabulary: Vocabulary) -> tuple[Tool, ...]:
    """Return one to three tools with different names."""
    count = vocabulary.choose((1, 1, 2, 3))
    tools = [
        vocabulary.choose(KNOWN_TOOLS) if vocabulary.chance(0.35) else _invent_tool(vocabulary)
        for _ in range(count)
    ]
    return tuple({tool.name: tool for tool in tools}.values())


def _invent_tool(vocabulary: Vocabulary) -> Tool:
    parameters = {
        _parameter_name(vocabulary): vocabulary.choose(("string", "string", "string", "integer", "number"))
        for _ in range(vocabulary.choose((1, 1, 2, 3)))
    }
    return Tool(_tool_name(vocabulary), parameters)


def _parameter_name(vocabulary: Vocabulary) -> str:
    if vocabulary.chance(0.75):
        return vocabulary.choose(KEYS + PARAMETERS)
    return vocabulary.invented(2)


def _tool_name(vocabulary: Vocabulary) -> str:
    verb = vocabulary.choose(TOOL_VERBS)
    noun = vocabulary.choose(DICTIONARY) if vocabulary.chance(0.5) else vocabulary.invented(2)
    share = vocabulary.random.random()
    if share < 0.4:
        return f"{verb}_{noun}"
    if share < 0.8:
        parts = [
            vocabulary.invented(vocabulary.choose((1, 2))) if vocabulary.chance(0.6) else vocabulary.glued()
            for _ in range(vocabulary.choose((1, 2, 2, 3)))
        ]
        return vocabulary.choose(("_", "_", "-")).join(parts)
    return verb + noun.capitalize()


def tool_turns(vocabulary: Vocabulary, tools: tuple[Tool, ...]) -> list[Message]:
    """Return a request, the calls that answer it, and mostly their results and what they mean."""
    tool = vocabulary.choose(tools)
    request, argument_sets = _request(vocabulary, tool)
    calls = tuple(Call(tool.name, arguments) for arguments in argument_sets)
    turns = [
        Message("user", request),
        Message("assistant", thought=f"I should call {tool.name}.", calls=calls),
    ]
    if vocabulary.chance(0.85):
        results = [_result(vocabulary) for _ in calls]
        turns += [Message("tool", result) for result in results]
        turns.append(Message("assistant", told(tool.name, results), "I have the result."))
    return turns


def told(name: str, results: list[str]) -> str:
    """Return how the model tells the results of its calls."""
    return f"The result of {name} is: {'; '.join(results)}"


def _result(vocabulary: Vocabulary) -> str:
    share = vocabulary.random.random()
    if share < 0.3:
        unit = vocabulary.choose(("", " C", "°C", "°F", " degrees"))
        return f"{vocabulary.number(-20, 45)}{unit}"
    if share < 0.5:
        return vocabulary.phrase(1, 4)
    if share < 0.8:
        keys = [vocabulary.choose(KEYS + RESULT_KEYS) for _ in range(vocabulary.number(1, 2))]
        return as_json(
            {key: vocabulary.choose((vocabulary.number(0, 99), vocabulary.word(), True)) for key in keys}
        )
    state = vocabulary.choose(("sunny", "rainy", "cloudy", "ok", "done", "true", "windy", "error: not found"))
    return state + vocabulary.choose(("", f", {vocabulary.number(0, 40)}"))


def _request(vocabulary: Vocabulary, tool: Tool) -> Request:
    known = _KNOWN_REQUESTS.get(tool.name)
    # Now and then the weather is asked for like an invented tool, by its name.
    if known is None or (tool.name == "get_weather" and vocabulary.chance(0.15)):
        return _ask_by_name(vocabulary, tool)
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


def _ask_by_name(vocabulary: Vocabulary, tool: Tool) -> Request:
    arguments = {key: _argument(vocabulary, kind) for key, kind in tool.parameters.items()}
    sign = vocabulary.choose((" ", " = ", ": ", " set to "))
    pairs = vocabulary.choose((" and ", ", ")).join(f"{key}{sign}{value}" for key, value in arguments.items())
    verb = tool.name.replace("_", " ")
    request = vocabulary.fill(
        _CALL_REQUESTS,
        name=tool.name,
        arguments=pairs,
        verb=verb,
        verb_capital=verb.capitalize(),
    )
    return request, [arguments]


def _argument(vocabulary: Vocabulary, kind: str) -> str | int:
    if kind != "string":
        return vocabulary.number(0, 9999)
    return vocabulary.name() if vocabulary.chance(0.4) else vocabulary.words(1, 3)


_KNOWN_REQUESTS: dict[str, Callable[[Vocabulary, Mapping[str, str]], Request]] = {
    "get_weather": _ask_weather,
    "get_horoscope": _ask_horoscope,
    "get_time": _ask_time,
    "search": _ask_search,
    "get_stock_price": _ask_stock_price,
    "send_email": _ask_email,
    "add": _ask_sum,
}
