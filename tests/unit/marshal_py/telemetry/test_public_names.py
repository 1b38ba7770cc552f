"""The short names that users import: there, and no extra is needed to reach the door."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

WITHOUT_EXTRAS = """
import sys

for extra in ("prometheus_client", "opentelemetry", "psycopg", "pydantic"):
    sys.modules[extra] = None
import harvest
import marshal_py.telemetry

harvest.Stasher("outbox")
marshal_py.telemetry.JsonFormatter()
try:
    marshal_py.telemetry.MarshalMetrics
except ModuleNotFoundError as error:
    print(error.name)
"""


@pytest.mark.parametrize("door", ["marshal_py", "marshal_py.telemetry", "harvest"])
def test_every_public_name_is_there(door: str) -> None:
    module = importlib.import_module(door)
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
        assert name in dir(module)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_the_import_needs_no_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "prometheus_client"), done.stderr
