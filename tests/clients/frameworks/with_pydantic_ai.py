"""pydantic-ai against a server, over both APIs."""

import asyncio
from collections.abc import Callable

from cases import AGAIN, CITIES, HELLO, TOO_LONG, TYPED, Server, get_weather, print_results, with_cities
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    city: str
    degrees: int


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    return {"responses": of(server, OpenAIResponsesModel), "chat": of(server, OpenAIChatModel)}


def of(server: Server, kind: type) -> dict[str, Callable[[], object]]:
    def agent(model: str = server.model, key: str = server.key, **options: object) -> Agent:
        provider = OpenAIProvider(base_url=server.url, api_key=key)
        return Agent(kind(model, provider=provider), **options)

    async def stream() -> str:
        async with agent().run_stream(HELLO) as result:
            return "".join([text async for text in result.stream_text(delta=True)])

    def turns() -> str:
        first = agent().run_sync(HELLO)
        return agent().run_sync(AGAIN, message_history=first.all_messages()).output

    def structured() -> dict[str, object]:
        native = agent(output_type=NativeOutput(Weather)).run_sync(TYPED).output
        tool = (
            agent(output_type=ToolOutput(Weather, name="tell_weather")).run_sync("Call tell_weather!").output
        )
        assert native == tool
        return native.model_dump()

    return {
        "plain": lambda: agent().run_sync(HELLO).output,
        "stream": lambda: asyncio.run(stream()),
        "turns": turns,
        "tool": lambda: with_cities(agent(tools=[get_weather]).run_sync(CITIES).output),
        "structured": structured,
        "usage": lambda: agent().run_sync(HELLO).usage.output_tokens > 0,
        "bad key": lambda: agent(key="wrong").run_sync(HELLO),
        "unknown model": lambda: agent("nobody").run_sync(HELLO),
        "too long": lambda: agent().run_sync(TOO_LONG),
    }


if __name__ == "__main__":
    print_results(cases)
