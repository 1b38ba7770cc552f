"""The checked models in specs/models: no violation, and one with any rule left out."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from tests.support.paths import SPECS

_PATH = SPECS / "models" / "check.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("models_check", _PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


check = _load()
_CASES = [(m, mutation) for m in check.MODELS for mutation in ("", *m.mutations)]


@pytest.mark.skipif(check.missing() is not None, reason=str(check.missing()))
@pytest.mark.parametrize(
    ("model", "mutation"),
    _CASES,
    ids=[f"{m.name}-{mutation or 'as it is'}" for m, mutation in _CASES],
)
def test_the_model_has_a_violation_only_where_a_rule_is_left_out(model: Any, mutation: str) -> None:
    outcome = check.check(model, mutation)
    assert outcome.complete
    assert outcome.violation == bool(mutation)
    assert mutation or outcome.states > 1_000
