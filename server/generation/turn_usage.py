"""Token usage of a response: of each model turn, and their sums. Pure."""

from engine.request import Usage as EngineUsage
from server.protocol.responses.response import TurnUsage


class TurnUsages:
    """The usage of the finished model turns."""

    def __init__(self) -> None:
        self.turns: list[TurnUsage] = []

    @property
    def prompt(self) -> int:
        return sum(turn.input for turn in self.turns)

    @property
    def cached(self) -> int:
        return sum(turn.cached for turn in self.turns)

    @property
    def output(self) -> int:
        return sum(turn.output for turn in self.turns)

    def add(self, usage: EngineUsage, resumed: int, *, first_is_summary: bool) -> None:
        """Adds a turn. Its `resumed` tokens, from earlier attempts, count as output and not as prompt.

        The part of the prompt beyond the previous turn's input and output is tool output, unless the previous
        turn wrote a compaction's summary.
        """
        prompt = usage.prompt - resumed
        tools = 0
        if len(self.turns) > first_is_summary:
            before = self.turns[-1]
            tools = max(0, prompt - before.input - before.output)
        self.turns.append(TurnUsage(prompt, min(usage.cached, prompt), usage.output + resumed, tools))
