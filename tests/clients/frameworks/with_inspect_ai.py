"""Inspect's provider for servers like OpenAI's, over both APIs."""

import asyncio
import json
from collections.abc import Callable

from cases import AGAIN, CITIES, HELLO, TOO_LONG, TYPED, Server, print_results, with_cities
from cases import get_weather as weather_of
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ModelOutput,
    ResponseSchema,
    execute_tools,
    get_model,
)
from inspect_ai.tool import Tool, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


class TooLong(Exception):
    """What Inspect makes of a 400 that it takes for a full window: no error, but a reason to stop."""

    status = 400


@tool
def get_weather() -> Tool:
    async def execute(city: str) -> str:
        """Tells the weather.

        Args:
            city: The name of a city.
        """
        return weather_of(city)

    return execute


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    return {
        "chat": of(server, "openai-api/holdfast", responses_api=False),
        "responses": of(server, "openai-api/holdfast", responses_api=True),
    }


def of(server: Server, provider: str, **options: object) -> dict[str, Callable[[], object]]:
    def model(name: str = server.model, key: str = server.key) -> Model:
        config = GenerateConfig(max_retries=0, temperature=0)
        return get_model(
            f"{provider}/{name}", base_url=server.url, api_key=key, config=config, memoize=False, **options
        )

    def ask(content: str = HELLO, **more: object) -> ModelOutput:
        return asyncio.run(model().generate(content, **more))

    async def turns() -> str:
        first = await model().generate(HELLO)
        messages = [ChatMessageUser(content=HELLO), first.message, ChatMessageUser(content=AGAIN)]
        assert isinstance(first.message, ChatMessageAssistant)
        return (await model().generate(messages)).completion

    async def tools() -> str:
        messages = [ChatMessageUser(content=CITIES)]
        first = await model().generate(messages, tools=[get_weather()])
        messages.append(first.message)
        ran = await execute_tools(messages, [get_weather()])
        return (await model().generate([*messages, *ran.messages], tools=[get_weather()])).completion

    def too_long() -> None:
        if ask(TOO_LONG).stop_reason == "model_length":
            raise TooLong

    schema = ResponseSchema(name="weather", json_schema=json_schema(Weather), strict=True)
    return {
        "plain": lambda: ask().completion,
        "turns": lambda: asyncio.run(turns()),
        "tool": lambda: with_cities(asyncio.run(tools())),
        "structured": lambda: json.loads(
            ask(TYPED, config=GenerateConfig(response_schema=schema)).completion
        ),
        "usage": lambda: ask().usage.output_tokens > 0,
        "bad key": lambda: asyncio.run(model(key="wrong").generate(HELLO)),
        "unknown model": lambda: asyncio.run(model("nobody").generate(HELLO)),
        "too long": too_long,
    }


if __name__ == "__main__":
    print_results(cases)
