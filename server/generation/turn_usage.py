"""The tokens that the turns of a response have taken: of each, and of all."""

from engine.request import Usage as EngineUsage
from server.protocol.responses.response import TurnUsage


class TurnUsages:
    """By the turns of the model that are over."""

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

    def add(self, usage: EngineUsage, resumed: int, *, sums_up_first: bool) -> None:
        """Takes a turn's usage, whose prompt has the `resumed` tokens of earlier attempts, too.

        What a prompt has beyond the turn before it is the output of tools, unless that turn made a summary.
        """
        prompt = usage.prompt - resumed
        tools = 0
        if len(self.turns) > sums_up_first:
            before = self.turns[-1]
            tools = max(0, prompt - before.input - before.output)
        self.turns.append(TurnUsage(prompt, min(usage.cached, prompt), usage.output + resumed, tools))
