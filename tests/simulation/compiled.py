"""The same histories, faster: the claimant and the simulator compiled by mypyc.

The source is not changed: a copy of it in a temporary folder is compiled, and the campaign runs
there. mypyc comes with mypy; a C compiler has to be there. `same_histories` compares the compiled
code with the interpreted, fingerprint by fingerprint.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

MODULES: Final = (
    # The fold itself stays as it is: mypyc erases the types that its decoders need.
    "marshal_py/protocol/claim_states.py",
    "marshal_py/protocol/claimant.py",
    "marshal_py/protocol/cold_start.py",
    "marshal_py/protocol/heartbeat_schedule.py",
    "marshal_py/protocol/holding.py",
    "marshal_py/protocol/timers.py",
    "marshal_py/protocol/unread_appends.py",
    "marshal_py/testing/memory_log.py",
    "marshal_py/protocol/world.py",
    "tests/simulation/checks.py",
    "tests/simulation/common.py",
    "tests/simulation/operators.py",
    "tests/simulation/process.py",
    "tests/simulation/simulator.py",
    "tests/simulation/user.py",
    "tests/support/reference_fold.py",
)
_FINGERPRINTS: Final = """
import json, sys
from tests.simulation.scenario import generate
from tests.simulation.simulator import run
outcomes = [run(generate(seed)) for seed in range(*map(int, sys.argv[1:]))]
print(json.dumps([[o.fingerprint, o.violation, sorted(o.counts.items())] for o in outcomes]))
"""


class CannotCompile(Exception):
    """mypyc or a C compiler is missing, or did not succeed."""


@contextmanager
def compiled() -> Iterator[Path]:
    """A folder with a compiled copy of the project; gone afterwards. Takes a minute."""
    with tempfile.TemporaryDirectory(prefix="marshal-compiled-") as folder:
        tree = Path(folder)
        for package in ("marshal_py", "harvest", "tests"):
            shutil.copytree(
                ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__", "*.so")
            )
        (tree / "mypy.ini").write_text("[mypy]\nignore_missing_imports = True\n", "utf-8")
        program = [sys.executable, "-c", "from mypyc.__main__ import main; main()", *MODULES]
        environment = {**os.environ, "MYPYC_OPT_LEVEL": "2", "PYTHONPATH": folder}
        done = subprocess.run(program, cwd=tree, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise CannotCompile((done.stderr or done.stdout)[-2000:])
        yield tree


def run_in(tree: Path, *arguments: str) -> int:
    """``python -m tests.simulation`` with `arguments` in `tree`; return its exit status."""
    program = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(program, env=_environment(tree), check=False).returncode


def same_histories(tree: Path, first: int, count: int) -> bool:
    """Whether the compiled code makes the same histories of these seeds as the interpreted."""
    return _fingerprints(tree, first, count) == _fingerprints(ROOT, first, count)


def _fingerprints(tree: Path, first: int, count: int) -> object:
    program = [sys.executable, "-c", _FINGERPRINTS, str(first), str(first + count)]
    done = subprocess.run(program, env=_environment(tree), capture_output=True, text=True)
    if done.returncode:
        raise CannotCompile(done.stderr[-2000:])
    return json.loads(done.stdout)


def _environment(tree: Path) -> dict[str, str]:
    # -c and -m put the current folder in front: the path goes there instead.
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
