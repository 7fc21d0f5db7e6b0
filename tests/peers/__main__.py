"""Runs vLLM's and OGX's own tests, unchanged, against Holdfast: `python -m tests.peers [vllm|ogx] [WORD …]`.

First on the demo model; what fails there, once more on the scripted engine, whose answers know what the tests
ask. Every case must pass in one of the two, or stand in `expected.toml` with the reason why it cannot; and
what stands there must not pass. With words for pytest, only what they name is run and
compared.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tests.peers import sources
from tests.peers.suites import SUITES, Suite
from tests.support.server_process import REPOSITORY

HERE = Path(__file__).parent
BY_CHANCE = "by chance"
"""The kind of a case that one sample of a small model passes and another fails."""

Results = dict[str, list[str]]
"""By a case's id: its outcome, and what went wrong."""


def run(suite: Suite, words: list[str], engine: str) -> Results:
    """Runs the named files and cases of a suite, or all of ours, with pytest."""
    root = suite.fetch()
    file = sources.PEERS / f"{suite.name}-{engine}.json"
    file.unlink(missing_ok=True)
    path = os.pathsep.join([str(REPOSITORY), str(sources.packages())])
    chosen = [str(root / word) for word in words if word.startswith("tests/")]
    chosen = chosen or [str(root / name) for name in suite.files]
    rest = [word for word in words if not word.startswith("tests/")]
    command = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--rootdir", str(root)]
    plugins = ["-p", suite.plugin, "-p", "pytest_asyncio", "-p", "no:cacheprovider"]
    wanted = suite.options if any("/tool_use/" in name for name in chosen) else ()  # their conftest's
    mine = {"PYTHONPATH": path, "PEERS_ENGINE": engine, "PEERS_RESULTS": str(file), "PEERS_ROOT": str(root)}
    subprocess.run(
        [*command, *plugins, "-q", "--tb=native", "-W", "ignore", *wanted, *chosen, *rest],
        env={**os.environ, **mine},
        cwd=REPOSITORY,
        check=False,
    )
    return dict(json.loads(file.read_text(encoding="utf-8")))


def run_twice(suite: Suite, words: list[str]) -> Results:
    """What came of each case: on the demo model or, where it failed there, on the scripted engine."""
    results = run(suite, words, "model")
    again = [case for case, (outcome, _) in results.items() if outcome == "failed"]
    if again:
        rest = [word for word in words if not word.startswith("tests/")]
        scripted = run(suite, again + rest, "scripted")
        results |= {case: result for case, result in scripted.items() if result[0] == "passed"}
    return results


def expected() -> dict[str, tuple[str, str]]:
    """Why a case cannot pass, as its kind and a reason, by the case's id."""
    tables = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))
    return {case: (kind, reason) for kind, cases in tables.items() for case, reason in cases.items()}


def compare(results: Results) -> list[str]:
    """What is otherwise than the list says, one line each."""
    listed = expected()
    found: list[str] = []
    for case, (outcome, why) in results.items():
        kind = listed.get(case, ("", ""))[0]
        if outcome == "failed" and not kind:
            found.append(f"fails, and is not listed: {case}: {why.splitlines()[0] if why else ''}")
        if outcome == "passed" and kind not in ("", BY_CHANCE):
            found.append(f"passes, and is listed: {case}")
    return found


def main(words: list[str]) -> int:
    names = [word for word in words if word in {suite.name for suite in SUITES}]
    words = [word for word in words if word not in names]
    results: Results = {}
    for suite in SUITES:
        if suite.name in names or not names:
            results |= run_twice(suite, words)
    listed = expected()
    wrong = compare(results)
    if not words and not names:
        wrong += [f"is listed, and is no case: {case}" for case in listed if case not in results]
    kinds = Counter(
        listed[case][0] if outcome == "failed" and case in listed else outcome
        for case, (outcome, _) in results.items()
    )
    sys.stdout.write("\n".join([*wrong, *(f"{count:5} {kind}" for kind, count in kinds.most_common()), ""]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
