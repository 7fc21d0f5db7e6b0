"""Semantic Kernel against a server: its agents over both APIs, and its text completion."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from cases import AGAIN, CITIES, HELLO, TOO_LONG, TYPED, Server, print_results, with_cities
from cases import get_weather as weather_of
from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel.agents import ChatCompletionAgent, OpenAIResponsesAgent
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
    OpenAITextCompletion,
    OpenAITextPromptExecutionSettings,
)
from semantic_kernel.functions import KernelArguments, kernel_function


class Weather(BaseModel):
    city: str
    degrees: int


class Plugin:
    @kernel_function(description="Tells the weather.")
    def get_weather(self, city: Annotated[str, "The name of a city."]) -> str:
        return weather_of(city)


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    def client(key: str) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=server.url, api_key=key, max_retries=0)

    def chat(model: str = server.model, key: str = server.key, **more: object) -> ChatCompletionAgent:
        service = OpenAIChatCompletion(ai_model_id=model, async_client=client(key))
        return ChatCompletionAgent(service=service, name="Agent", **more)

    def responses(model: str = server.model, key: str = server.key, **more: object) -> OpenAIResponsesAgent:
        return OpenAIResponsesAgent(ai_model_id=model, client=client(key), name="Agent", **more)

    def text(asked: str = HELLO, model: str = server.model, key: str = server.key) -> str:
        service = OpenAITextCompletion(ai_model_id=model, async_client=client(key))
        settings = OpenAITextPromptExecutionSettings(max_tokens=64)
        return str(run(service.get_text_content(asked, settings)))

    named = {
        "plain": text,
        "bad key": lambda: text(key="wrong"),
        "unknown model": lambda: text(model="nobody"),
        "too long": lambda: text(TOO_LONG),
    }
    settings = OpenAIChatPromptExecutionSettings(response_format=Weather)
    return {
        "chat": of(chat, lambda: chat(arguments=KernelArguments(settings=settings))),
        "responses": of(
            responses, lambda: responses(text=OpenAIResponsesAgent.configure_response_format(Weather))
        ),
        "text": named,
    }


def run(made: Awaitable[object]) -> object:
    async def wait() -> object:
        return await made

    return asyncio.run(wait())


def of(agent: Callable[..., object], typed: Callable[[], object]) -> dict[str, Callable[[], object]]:
    def ask(asked: str = HELLO, **options: object) -> object:
        return run(agent(**options).get_response(messages=asked))

    async def stream() -> str:
        return "".join([str(chunk.message) async for chunk in agent().invoke_stream(messages=HELLO)])

    async def turns() -> str:
        talker = agent()
        first = await talker.get_response(messages=HELLO)
        second = await talker.get_response(messages=AGAIN, thread=first.thread)
        return str(second.message)

    return {
        "plain": lambda: str(ask().message),
        "stream": lambda: run(stream()),
        "turns": lambda: run(turns()),
        "tool": lambda: with_cities(str(ask(CITIES, plugins=[Plugin()]).message)),
        "structured": lambda: Weather.model_validate_json(
            str(run(typed().get_response(messages=TYPED)).message)
        ).model_dump(),
        "bad key": lambda: ask(key="wrong"),
        "unknown model": lambda: ask(model="nobody"),
        "too long": lambda: ask(TOO_LONG),
    }


if __name__ == "__main__":
    print_results(cases)
