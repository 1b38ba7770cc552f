"""What the `marshal` command is run with: see `cli` and `run` of tests/integration, too."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from typer.testing import CliRunner, Result

from marshal_py.cli.app import app

Cli = Callable[..., subprocess.CompletedProcess[str]]


def cli_environment(servers: str, topic: str) -> dict[str, str]:
    return os.environ | {"MARSHAL_BOOTSTRAP_SERVERS": servers, "MARSHAL_TOPIC": topic}


def without_brokers(*arguments: str, **environment: str) -> Result:
    """Run `marshal` in this process; what it would ask of brokers, the test has replaced."""
    given = {"MARSHAL_BOOTSTRAP_SERVERS": "nowhere:1", "MARSHAL_TOPIC": "", "MARSHAL_CONFIG": ""}
    done = CliRunner().invoke(app, list(arguments), env=given | environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done
