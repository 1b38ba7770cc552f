"""How long `import marshal_py` takes, beyond what confluent-kafka's import takes.

New processes in turn, whose bytecode a first import compiled: it warms the page cache, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Final

from tests.benchmarks.harness import Figure, Options, median, run

PROCESS: Final = """
import time, confluent_kafka
began = time.perf_counter(), time.process_time()
import marshal_py
marshal_py.Consumer
print(time.perf_counter() - began[0], time.process_time() - began[1])
"""


def measure(options: Options) -> list[Figure]:
    times = 5 if options.quick else 20
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        found = [_import(environment) for _ in range(times + 1)][1:]
    wall, processor = (median(list(each)) for each in zip(*found, strict=True))
    return [
        Figure("import, beyond confluent_kafka's", wall, "s", None, "≤ 0.15 s", wall <= 0.15),
        Figure("import, beyond confluent_kafka's, processor", processor, "s"),
    ]


def _import(environment: dict[str, str]) -> tuple[float, float]:
    told = subprocess.run(
        [sys.executable, "-c", PROCESS], env=environment, capture_output=True, check=True
    ).stdout.split()
    return float(told[0]), float(told[1])


if __name__ == "__main__":
    run(measure, __doc__)
