"""litellm against a server, run by an interpreter that has it: `litellm_sdk.py URL MODEL`.

Prints what each call of its adapters for OpenAI's APIs gave, as JSON.
"""

import json
import sys

import litellm

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def main(url: str, name: str) -> dict[str, object]:
    place = {"api_base": url, "api_key": "none", "max_retries": 0}
    chat = {"model": f"openai/{name}", **place}
    said = [{"role": "user", "content": "Say hello."}]
    whole = litellm.completion(messages=said, n=2, seed=1, **chat)
    chunks = list(litellm.completion(messages=said, seed=1, stream=True, **chat))
    messages = [{"role": "user", "content": "Oslo and Rome?"}]
    called = litellm.completion(messages=messages, tools=TOOLS, **chat).choices[0].message
    messages.append(called.model_dump())
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny, says the oracle."}
        for call in called.tool_calls
    ]
    response = litellm.responses(input="Say hello.", **chat)
    events = [event.type for event in litellm.responses(input="Say hello.", stream=True, **chat)]
    text = litellm.text_completion(prompt="Say hello.", model=f"text-completion-openai/{name}", **place)
    return {
        "whole": [choice.message.content for choice in whole.choices],
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "called": [json.loads(call.function.arguments) for call in called.tool_calls],
        "answered": litellm.completion(messages=messages, tools=TOOLS, **chat).choices[0].message.content,
        "response": response.output[0].content[0].text,
        "events": [events[0], events[-1]],
        "text": text.choices[0].text,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
