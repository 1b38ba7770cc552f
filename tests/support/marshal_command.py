"""What the `marshal` command is run with: see the fixtures `cli` and `run` of tests/integration."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

Cli = Callable[..., subprocess.CompletedProcess[str]]


def cli_environment(servers: str, topic: str) -> dict[str, str]:
    return os.environ | {"MARSHAL_BOOTSTRAP_SERVERS": servers, "MARSHAL_TOPIC": topic}
