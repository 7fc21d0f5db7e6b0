"""Haystack's generators against a server, over both APIs."""

from collections.abc import Callable

from cases import AGAIN, CITIES, HELLO, TOO_LONG, TYPED, Server, get_weather, print_results, with_cities
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    return {
        "chat": of(server, OpenAIChatGenerator, "response_format"),
        "responses": of(server, OpenAIResponsesChatGenerator, "text_format"),
    }


def of(server: Server, kind: type, typed: str) -> dict[str, Callable[[], object]]:
    def generator(model: str = server.model, key: str = server.key, **options: object) -> object:
        secret = Secret.from_token(key)
        return kind(api_key=secret, api_base_url=server.url, model=model, max_retries=0, **options)

    def ask(text: str = HELLO, **options: object) -> ChatMessage:
        return generator(**options).run(messages=[ChatMessage.from_user(text)])["replies"][0]

    def stream() -> str:
        chunks: list[str] = []
        whole = ask(streaming_callback=lambda chunk: chunks.append(chunk.content)).text
        assert "".join(chunks) == whole
        return whole

    def turns() -> str:
        first = [ChatMessage.from_user(HELLO), ask()]
        return generator().run(messages=[*first, ChatMessage.from_user(AGAIN)])["replies"][0].text

    def tool() -> object:
        agent = Agent(chat_generator=generator(), tools=[create_tool_from_function(get_weather)])
        return with_cities(agent.run(messages=[ChatMessage.from_user(CITIES)])["messages"][-1].text)

    def structured() -> dict[str, object]:
        return Weather.model_validate_json(ask(TYPED, generation_kwargs={typed: Weather}).text).model_dump()

    def usage() -> bool:
        counted = ask().meta["usage"]
        return counted.get("completion_tokens", counted.get("output_tokens", 0)) > 0

    return {
        "plain": lambda: ask().text,
        "stream": stream,
        "turns": turns,
        "tool": tool,
        "structured": structured,
        "usage": usage,
        "bad key": lambda: ask(key="wrong"),
        "unknown model": lambda: ask(model="nobody"),
        "too long": lambda: ask(TOO_LONG),
    }


if __name__ == "__main__":
    print_results(cases)
