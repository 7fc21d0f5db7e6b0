"""openai-agents against a server, run by an interpreter that has it: `agents_sdk.py URL MODEL`.

Prints what each agent ended with, as JSON.
"""

import asyncio
import json
import sys

from agents import (
    Agent,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

called: list[str] = []
TALK = ("Say hello.", "Say hello again.")


class Weather(BaseModel):
    city: str
    degrees: int


@function_tool
def get_weather(city: str) -> str:
    """Tells the weather."""
    called.append(city)
    return f"Sunny in {city}, says the oracle."


async def main(url: str, name: str) -> dict[str, object]:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    model = OpenAIResponsesModel(name, client)
    weather = Agent(name="Weather", instructions="Tell the weather.", model=model, tools=[get_weather])
    told: dict[str, object] = {}

    result = await Runner.run(weather, "Oslo and Rome?")
    told["parallel"] = [result.final_output, sorted(called)]

    called.clear()
    streamed = Runner.run_streamed(weather, "Oslo and Rome?", auto_previous_response_id=True)
    kinds = [event.type async for event in streamed.stream_events()]
    told["streamed"] = [streamed.final_output, sorted(called), "raw_response_event" in kinds]

    spanish = Agent(name="Spanish", instructions="You speak Spanish.", model=model)
    triage = Agent(name="Triage", instructions="Hand over.", model=model, handoffs=[spanish])
    handed = await Runner.run(triage, "A Spaniard is here.")
    told["handoff"] = [handed.final_output, handed.last_agent.name]

    typed = Agent(name="Typed", model=model, output_type=Weather)
    told["typed"] = (await Runner.run(typed, "Typed weather!")).final_output.model_dump()

    first = await Runner.run(Agent(name="Plain", model=model), "Say hello.")
    second = await Runner.run(
        Agent(name="Plain", model=model),
        [*first.to_input_list(), {"role": "user", "content": "Say hello again."}],
    )
    told["replayed"] = second.final_output

    session = OpenAIConversationsSession(openai_client=client)
    plain = Agent(name="Plain", model=model)
    said = [(await Runner.run(plain, text, session=session)).final_output for text in TALK]
    kept = [item["role"] for item in await session.get_items()]
    last = await session.pop_item()
    left = len(await session.get_items())
    await session.clear_session()
    told["session"] = [said, kept, last["role"], left]

    async with client.responses.connect() as socket:
        await socket.response.create(model=name, input="Say hello.", store=False)
        events = []
        async for event in socket:
            events.append(event.type)
            if event.type == "response.completed":
                break
        told["websocket"] = [events[0], events[-1]]
    await client.close()
    return told


if __name__ == "__main__":
    set_tracing_disabled(True)
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))  # noqa: T201
