from dataclasses import replace
from typing import Any

import pytest

from server.store.session_check import STANDBY, DurabilitySettings, complaints

SAFE = DurabilitySettings(
    fsync="on",
    full_page_writes="on",
    synchronous_commit="on",
    synchronous_standby_names="",
    in_recovery=False,
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"synchronous_commit": "remote_apply"},
        {"hosts": 2, "synchronous_standby_names": "ANY 1 (a, b)"},
        {"fsync": None, "full_page_writes": None, "synchronous_standby_names": None, "hosts": 2},
    ],
    ids=str,
)
def test_a_cluster_that_keeps_what_it_confirms_is_not_complained_of(changes: dict[str, Any]) -> None:
    assert list(complaints(replace(SAFE, **changes))) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fsync": "off"}, "fsync = off"),
        ({"full_page_writes": "off"}, "full_page_writes = off"),
        ({"synchronous_commit": "off"}, "synchronous_commit = off"),
        ({"hosts": 2}, "set synchronous_standby_names"),
        ({"in_recovery": True, "hosts": 2}, STANDBY),
    ],
    ids=str,
)
def test_each_setting_by_which_less_is_kept_is_one_sentence(changes: dict[str, Any], words: str) -> None:
    (sentence,) = complaints(replace(SAFE, **changes))
    assert words in sentence
    assert sentence.endswith(".")
    assert ": " in sentence, "it says what to do"
