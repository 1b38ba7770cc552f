"""What importing the package costs is what a restart costs: it loads what everybody needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

ONLY_FOR_SOME = {
    "marshal_py.admin": "marshal group, GroupAdmin",
    "marshal_py.client.aio": "AsyncMarshal",
    "marshal_py.consumer.aio": "AsyncConsumer",
    "marshal_py.consumer.assignor_version1": 'wire="text"',
    "marshal_py.consumer.handlers.runner": "Consumer.run",
    "marshal_py.consumer.offset_mirror": "mirror_offsets=True",
    "marshal_py.consumer.ranges": 'sharing="ranges"',
    "marshal_py.consumer.transactions": "Transactions",
    "marshal_py.protocol.text.claimant": 'wire="text"',
    "marshal_py.protocol.text.rationalizer": 'wire="text"',
    "marshal_py.telemetry": "metrics",
    "prometheus_client": "metrics",
    "pydantic": "decode=",
    "rich": "marshal",
    "typer": "marshal",
}


@pytest.mark.parametrize("code", ["import marshal_py", "from marshal_py import Consumer, Marshal"])
def test_an_import_loads_nothing_that_only_some_need(code: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ONLY_FOR_SOME.keys() & set(told.stdout.split()) == set()
