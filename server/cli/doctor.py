"""`holdfast doctor`: what this configuration is on this machine, and whether it would serve."""

import argparse

import msgspec

from server.cli.command import Subcommands, add_command, print_result, print_status
from server.configuration.settings import Config
from server.process.configuration_checks import Finding, examine

FINE, PROBLEMS = 0, 1


def add_commands(commands: Subcommands) -> None:
    says = "load the model, check it on this machine and ask the database; changes nothing"
    command = add_command(commands, "doctor", says, _run, all_settings=True)
    command.add_argument("--json", action="store_true", help="one JSON object a line")


def _run(config: Config, options: argparse.Namespace) -> int:
    """Prints a line for each finding as it is made; 1 if one of them is a problem."""
    code = FINE
    for finding in examine(config, print_status):
        print_result(line_of(finding, as_json=options.json))
        if finding.level == "problem":
            code = PROBLEMS
    return code


def line_of(finding: Finding, *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(finding._asdict()).decode()
    return f"{finding.level:8}{finding.topic:10} {finding.sentence}"
