"""What the evaluation asks a model that stands behind an agent: long prompts, dozens of tools, oddities.

The prompts, tools and requests are ones that the corpus does not contain; the tasks are the plain
ones of ``evaluation_cases.py`` and those that only agents have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from demo import evaluation_cases, small_talk
from demo.chat import Call, Exchange, Message, Tool
from demo.evaluation_cases import Case, HeldOutVocabulary, Kind
from demo.evaluation_texts import REQUESTS, agent_prompt, documentation, held_out_tools, source
from demo.tool_results import told

#: Tasks that are asked again under an agent's prompt.
_PLAIN = tuple(
    kind
    for kind in evaluation_cases.KINDS
    if kind.name
    in (
        *("greeting", "identity", "echo of 1-4 words", "echo of 8-12 words", "recall of a name"),
        *("recall of another fact", "recall of one fact of two", "not told", "repeat N times"),
        *("weather call", "two calls", "call of an unknown tool", "answer from a tool result"),
        *("think and recall", "think and echo", "JSON", "sums to 10", "sums to 20", "count to 30"),
        *("fallback", "documentation examples"),
    )
)
#: Tokens of a long prompt; a token is about 1.6 characters of plain English.
_SHORTEST_PROMPT, _LONGEST_PROMPT = 500, 4000
_CHARACTERS_OF_A_TOKEN = 1.6
_PREFIXES = ("city__", "mcp__weather__", "openweather-", "functions.", "geo_")


def _prompt(words: HeldOutVocabulary) -> str:
    tokens = words.number(_SHORTEST_PROMPT, _LONGEST_PROMPT)
    return agent_prompt(words, int(tokens * _CHARACTERS_OF_A_TOKEN))


def _among(words: HeldOutVocabulary, count: int, *needed: Tool) -> tuple[Tool, ...]:
    """Return so many tools, the needed ones somewhere among them."""
    names = {tool.name for tool in needed}
    others = [tool for tool in held_out_tools() if tool.name not in names]
    chosen = [*needed, *words.random.sample(others, max(0, count - len(needed)))]
    words.random.shuffle(chosen)
    return tuple(chosen)


def in_setting(words: HeldOutVocabulary, case: Case, *, is_long: bool, tools: int) -> Case:
    """Return the case with an agent's prompt before it and more tools around its own."""
    messages = (Message("system", _prompt(words)), *case.messages) if is_long else case.messages
    offered = _among(words, tools, *case.tools) if tools else case.tools
    return replace(case, messages=messages, tools=offered)


def _plain(*, is_long: bool, tools: int) -> Callable[[HeldOutVocabulary], Case]:
    """Return a writer of plain tasks in a setting."""

    def write(words: HeldOutVocabulary) -> Case:
        case = words.choose(_PLAIN).write(words)
        return in_setting(words, case, is_long=is_long, tools=tools)

    return write


def _some_setting(words: HeldOutVocabulary, case: Case) -> Case:
    """Return the case in any setting, from none to a long prompt with forty tools."""
    is_long, tools = words.choose(((False, 0), (False, 3), (False, 36), (True, 0), (True, 10), (True, 40)))
    return in_setting(words, case, is_long=is_long, tools=tools)


def _persona(words: HeldOutVocabulary) -> Case:
    name = words.real_name()
    introduction = words.fill(("You are {name}.", "Your name is {name}."), name=name)
    parts = [introduction, documentation(words, words.number(800, 6000))]
    if words.chance(0.5):
        parts.reverse()
    messages = (Message("system", "\n\n".join(parts)), Message("user", "Who are you?"))
    return Case(messages, f"I am {name}.", _among(words, words.choose((0, 10, 40))))


def _call_of_one(words: HeldOutVocabulary) -> Case:
    """Ask for one of forty tools by its name, with one or two of its parameters."""
    tools = _among(words, 40)
    simple = [tool for tool in tools if _nameable(tool)]
    tool = words.choose(simple)
    keys = _nameable(tool)[:2]
    arguments = {
        key: words.words(1, 2) if tool.parameters[key] == "string" else words.number(0, 999) for key in keys
    }
    request = words.fill(
        ("use the tool {name} with {pairs}", "Call {name} with {pairs}", "Use {name} with {pairs}"),
        name=tool.name,
        pairs=" and ".join(f"{key} {value}" for key, value in arguments.items()),
    )
    return Case((Message("user", request),), Call(tool.name, arguments).text(), tools)


def _nameable(tool: Tool) -> list[str]:
    return [key for key, kind in tool.parameters.items() if kind in ("string", "integer", "number")]


def _prefixed_call(words: HeldOutVocabulary) -> Case:
    place = words.name()
    tool = Tool(f"{words.choose(_PREFIXES)}get_weather", {"city": "string"})
    request = words.fill(("What is the weather in {place}?", "weather in {place}"), place=place)
    tools = _among(words, words.choose((1, 5, 20, 40)), tool)
    return Case((Message("user", request),), Call(tool.name, {"city": place}).text(), tools)


def _not_offered(words: HeldOutVocabulary) -> Case:
    tools = held_out_tools()
    tool = words.choose([tool for tool in tools if _nameable(tool)])
    key = _nameable(tool)[0]
    others = [other for other in tools if other is not tool]
    requests = (
        f"Call {tool.name} with {key} {words.word()}",
        f"use the tool {tool.name} with {key} {words.word()}",
        f"What is the weather in {words.name()}?",
    )
    offered = tuple(words.random.sample(others, words.choose((0, 1, 10, 40))))
    return Case((Message("user", words.choose(requests)),), small_talk.FALLBACK, offered)


def _beyond(words: HeldOutVocabulary) -> Case:
    return Case((Message("user", words.choose(REQUESTS)),), small_talk.FALLBACK)


def _beyond_for_an_agent(words: HeldOutVocabulary) -> Case:
    return _some_setting(words, _beyond(words))


def _pasted(words: HeldOutVocabulary) -> Case:
    text = words.choose((documentation, source))(words, words.choose((200, 800, 2500)))
    request = words.choose(
        (text, f"{words.choose(REQUESTS)}\n\n{text}", f"{text}\n\n{words.choose(REQUESTS)}")
    )
    return _some_setting(words, Case((Message("user", request),), small_talk.FALLBACK))


def _called(words: HeldOutVocabulary, result: str, *, is_forced: bool = False) -> Case:
    """Return a case in which a tool was called and answered with this."""
    tool = words.choose(held_out_tools())
    request = words.choose(REQUESTS) if is_forced else f"Call {tool.name}"
    arguments = {key: words.word() for key in _nameable(tool)[:2]}
    messages = (
        Message("user", request),
        Message("assistant", calls=(Call(tool.name, arguments),)),
        Message("tool", result),
    )
    return _some_setting(words, Case(messages, told(tool.name, [result]), (tool,)))


def _forced(words: HeldOutVocabulary) -> Case:
    return _called(words, words.words(1, 5), is_forced=True)


def _long_result(words: HeldOutVocabulary) -> Case:
    first = words.words(2, 5)
    text = words.choose((documentation, source))(words, words.choose((300, 1000, 2500)))
    return _called(words, f"{first}\n{text}")


def _error(words: HeldOutVocabulary) -> Case:
    results = (
        f"FileNotFoundError: [Errno 2] No such file or directory: '{words.word()}.txt'",
        f"Error executing tool: {words.words(2, 5)}",
        '{"error": {"code": -32602, "message": "Invalid params"}}',
        "HTTP 503 Service Unavailable",
        "",
        "(no output)",
    )
    return _called(words, words.choose(results))


def _odd(words: HeldOutVocabulary) -> Case:
    """Ask something odd, for any answer that ends."""
    writers = (_noise, _noise, _glued, _beyond, _pasted, _many_turns)
    case = words.choose(writers)(words)
    if not case.tools and case.messages[0].role != "system":
        case = _some_setting(words, case)
    return replace(case, expected=None)


def _noise(words: HeldOutVocabulary) -> Case:
    alphabets = (
        "abc xyz",
        "0123456789",
        "äößéñçλжщ漢字かな한🙂🚀\u200b\u202e",
        "<|>{}[]\\\"'`*#_~/",
        " \n\t",
    )
    alphabet = words.choose((*alphabets, "".join(alphabets)))
    length = words.choose((0, 1, 3, 20, 100, 600))
    return Case((Message("user", "".join(words.choose(alphabet) for _ in range(length))),), None)


def _glued(words: HeldOutVocabulary) -> Case:
    """Ask in the middle of one text for what is asked in another."""
    request = " ".join(
        (words.choose(REQUESTS)[: words.number(3, 30)], source(words, 60), words.words(1, 9))[
            :: words.choose((1, -1))
        ]
    )
    return Case((Message("user", request),), None)


def _many_turns(words: HeldOutVocabulary) -> Case:
    exchanges = [
        words.choose(
            (Exchange(words.choose(REQUESTS), small_talk.FALLBACK, ""), *evaluation_cases.SMALL_TALK)
        )
        for _ in range(words.number(10, 30))
    ]
    messages = [message for exchange in exchanges for message in exchange.messages()]
    return Case((*messages, Message("user", words.choose(REQUESTS))), None)


KINDS = (
    Kind("plain tasks, 10 tools", _plain(is_long=False, tools=10), 0.8),
    Kind("plain tasks, 40 tools", _plain(is_long=False, tools=40), 0.8),
    Kind("plain tasks, long prompt", _plain(is_long=True, tools=0), 0.8),
    Kind("plain tasks, long prompt, 40 tools", _plain(is_long=True, tools=40), 0.7),
    Kind("persona in a long prompt", _persona, 0.85),
    Kind("call of one tool of 40", _call_of_one, 0.8),
    Kind("call of a prefixed tool", _prefixed_call, 0.1),
    Kind("a tool that is not offered", _not_offered, 0.2),
    Kind("beyond it", _beyond, 0.9),
    Kind("beyond it, as an agent", _beyond_for_an_agent, 0.8),
    Kind("pasted text", _pasted, 0.85),
    Kind("result of a forced call", _forced, 0.9),
    Kind("long result", _long_result, 0.6),
    Kind("error as a result", _error, 0.6),
    Kind("answers that end", _odd, 0.94),
)
