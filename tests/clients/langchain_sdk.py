"""LangChain's adapters for OpenAI's APIs against a server: `langchain_sdk.py URL MODEL`.

Prints what each of them gave, as JSON.
"""

import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


@tool
def get_weather(city: str) -> str:
    """Tells the weather."""
    return f"Sunny in {city}, says the oracle."


def text_of(message: object) -> str:
    return message.text() if callable(message.text) else message.text


def ask(model: ChatOpenAI) -> dict[str, object]:
    tooled = model.bind_tools([get_weather])
    messages = [HumanMessage("Oslo and Rome?")]
    called = tooled.invoke(messages)
    answers = [
        ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in called.tool_calls
    ]
    whole = model.invoke("Say hello.")
    return {
        "whole": str(text_of(whole)),
        "streamed": "".join(str(text_of(chunk)) for chunk in model.stream("Say hello.")),
        "called": [call["args"] for call in called.tool_calls],
        "answered": str(text_of(tooled.invoke([*messages, called, *answers]))),
        "typed": model.with_structured_output(Weather).invoke("Typed weather!").model_dump(),
        "counted": whole.usage_metadata["output_tokens"] > 0,
    }


def main(url: str, name: str) -> dict[str, object]:
    place = {"base_url": url, "api_key": "none", "model": name, "max_retries": 0}
    text = OpenAI(**place)
    return {
        "chat": ask(ChatOpenAI(**place)),
        "responses": ask(ChatOpenAI(**place, use_responses_api=True)),
        "text": [text.invoke("Say hello."), "".join(text.stream("Say hello."))],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
