"""One mutant, in a process of its own: ``python -m tests.mutation.child NAME HISTORIES SEED``.

Prints one line of JSON: the invariant that broke and after how many histories, or null.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tests.mutation.find import AnyMutant, find
from tests.mutation.load import install
from tests.support.paths import ROOT

HISTORY_S = 30
"""Of processor time, so that a busy machine is not taken for an endless loop; most take 1 s."""


class Hangs(BaseException):
    """The history does not end; simulated threads may report it as something that was raised."""


def main(name: str, histories: int, seed: int) -> None:
    mutant = find(name)
    play([mutant], mutant.campaign, histories, seed)


def play(
    mutants: Sequence[AnyMutant],
    campaign: str,
    histories: int,
    seed: int,
    wanted: str | None = None,
) -> None:
    """Run histories until one breaks an invariant, or the `wanted` one; print the finding."""
    for mutant in mutants:
        install(mutant.module, mutant.code())
    hangs = False

    def alarm(*_: object) -> None:
        nonlocal hangs
        hangs = True
        raise Hangs

    signal.signal(signal.SIGVTALRM, alarm)
    done = 0
    caught: list[str] | None = None
    try:
        # A mutant may break the very import.
        history = _history(campaign)
        for done in range(1, histories + 1):
            signal.setitimer(signal.ITIMER_VIRTUAL, HISTORY_S)
            violation = history(seed + done - 1)
            if violation is not None and wanted in (None, violation[0]):
                caught = list(violation)
                break
    except Hangs:
        hangs = True
    except Exception as error:
        caught = ["nothing raises", f"{type(error).__name__}: {error}"]
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if hangs:
        caught = ["it ends", f"a history took more than {HISTORY_S} s of processor time"]
    if caught is not None and wanted not in (None, caught[0]):
        caught = None
    print(json.dumps({"caught": caught, "histories": done}))


def found_by(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module that plays, and return its finding: caught, and after how many histories."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _history(campaign: str) -> Callable[[int], tuple[str, str] | None]:
    """What runs the history of a seed and returns its violation."""
    if campaign == "protocol":
        from tests.simulation.scenario import generate
        from tests.simulation.simulator import run

        return lambda seed: run(generate(seed)).violation
    from tests.simulation.whole import history

    return lambda seed: history.run(campaign, seed).violation


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
