"""LangGraph's agents with LangChain's models against a server, over both APIs."""

from collections.abc import Callable

from cases import AGAIN, CITIES, HELLO, TOO_LONG, TYPED, Server, get_weather, print_results, with_cities
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


def cases(server: Server) -> dict[str, dict[str, Callable[[], object]]]:
    return {
        "chat": of(server),
        "responses": of(server, use_responses_api=True, output_version="responses/v1"),
        "previous": of(server, use_responses_api=True, use_previous_response_id=True),
    }


def of(server: Server, **options: object) -> dict[str, Callable[[], object]]:
    def model(name: str = server.model, key: str = server.key) -> ChatOpenAI:
        return ChatOpenAI(base_url=server.url, api_key=key, model=name, max_retries=0, **options)

    def stream() -> str:
        graph = StateGraph(MessagesState)
        graph.add_node("answer", lambda state: {"messages": [model().invoke(state["messages"])]})
        graph.add_edge(START, "answer")
        asked = {"messages": [HumanMessage(HELLO)]}
        return "".join(text_of(chunk) for chunk, _ in graph.compile().stream(asked, stream_mode="messages"))

    def turns() -> str:
        agent = create_agent(model(), checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}}
        agent.invoke({"messages": [HumanMessage(HELLO)]}, thread)
        messages = agent.invoke({"messages": [HumanMessage(AGAIN)]}, thread)["messages"]
        assert len(messages) == 4
        return text_of(messages[-1])

    def tool() -> object:
        agent = create_agent(model(), tools=[get_weather])
        return with_cities(text_of(agent.invoke({"messages": [HumanMessage(CITIES)]})["messages"][-1]))

    return {
        "plain": lambda: text_of(model().invoke(HELLO)),
        "stream": stream,
        "turns": turns,
        "tool": tool,
        "structured": lambda: model().with_structured_output(Weather).invoke(TYPED).model_dump(),
        "usage": lambda: model().invoke(HELLO).usage_metadata["output_tokens"] > 0,
        "bad key": lambda: model(key="wrong").invoke(HELLO),
        "unknown model": lambda: model("nobody").invoke(HELLO),
        "too long": lambda: model().invoke(TOO_LONG),
    }


def text_of(message: object) -> str:
    text = message.text
    return str(text() if callable(text) else text)


if __name__ == "__main__":
    print_results(cases)
