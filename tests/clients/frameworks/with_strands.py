"""Strands Agents against a server, over both APIs, and with the talk remembered by the server."""

import asyncio
from collections.abc import Callable

from cases import AGAIN, CITIES, HELLO, TOO_LONG, Server, print_results, with_cities
from cases import get_weather as weather_of
from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel


class Weather(BaseModel):
    """The weather."""

    city: str
    degrees: int


@tool
def get_weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: The name of a city.
    """
    return weather_of(city)


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    return {
        "chat": of(server, OpenAIModel),
        "responses": of(server, OpenAIResponsesModel),
        "stateful": of(server, OpenAIResponsesModel, stateful=True),
    }


def of(server: Server, kind: type, **options: object) -> dict[str, Callable[[], object]]:
    def agent(model: str = server.model, key: str = server.key, **more: object) -> Agent:
        arguments = {"base_url": server.url, "api_key": key, "max_retries": 0}
        chosen = kind(client_args=arguments, model_id=model, **options)
        return Agent(model=chosen, callback_handler=None, retry_strategy=None, **more)

    async def stream() -> str:
        return "".join([event["data"] async for event in agent().stream_async(HELLO) if "data" in event])

    def turns() -> str:
        talker = agent()
        talker(HELLO)
        return str(talker(AGAIN)).strip()

    return {
        "plain": lambda: str(agent()(HELLO)).strip(),
        "stream": lambda: asyncio.run(stream()),
        "turns": turns,
        "tool": lambda: with_cities(str(agent(tools=[get_weather])(CITIES)).strip()),
        "structured": lambda: agent()(  # noqa: PLW0108 - each asks anew
            "Call Weather!", structured_output_model=Weather
        ).structured_output.model_dump(),
        "usage": lambda: agent()(HELLO).metrics.accumulated_usage["outputTokens"] > 0,
        "bad key": lambda: agent(key="wrong")(HELLO),
        "unknown model": lambda: agent("nobody")(HELLO),
        "too long": lambda: agent()(TOO_LONG),
    }


if __name__ == "__main__":
    print_results(cases)
