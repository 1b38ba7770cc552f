"""What `spark-submit` starts for a command: it takes files of Python, and no commands.

Each in a folder of its own, since Spark puts the folder of what it starts first among the modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from marshal_py.cli.output import say

__all__ = ["start"]


def start(program: str, file: str, main: Callable[[], None]) -> None:
    """Run a program's `main` if Spark has started this process; otherwise print where `file` is."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        sys.argv[0] = program
        main()
    else:
        say(str(Path(file).resolve()))
