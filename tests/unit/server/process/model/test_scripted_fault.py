import pytest

from engine.scripted_engine import FAULT_KINDS, Fault
from server.errors import ConfigError
from server.process.model.scripted_model import read_fault


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_is_a_kind_and_a_token_and_may_be_of_one_seed(kind: str) -> None:
    assert read_fault(f"{kind}@20") == (Fault(kind=kind, at_token=20), None)  # type: ignore[arg-type]
    assert read_fault(f"{kind}@0:7") == (Fault(kind=kind, at_token=0), 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "told", ["crash", "crash@", "crash@-1", "crash@x", "sleep@1", "crash@1:", "@1", "crash@1:2:3"]
)
def test_a_fault_that_is_none_is_refused_with_those_there_are(told: str) -> None:
    with pytest.raises(ConfigError, match="fail, raise, oom, hang, die, crash"):
        read_fault(told)
