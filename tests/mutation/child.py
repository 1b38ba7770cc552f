"""One mutant, in a process of its own: ``python -m tests.mutation.child NAME HISTORIES SEED``.

Prints one line of JSON: the invariant that broke and after how many histories, or null.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable

from tests.mutation.find import find
from tests.mutation.load import install

HISTORY_S = 60


class Hangs(BaseException):
    pass


def main(name: str, histories: int, seed: int) -> None:
    mutant = find(name)
    install(mutant.module, mutant.code())

    def alarm(*_: object) -> None:
        raise Hangs

    signal.signal(signal.SIGALRM, alarm)
    done, caught = 0, None
    try:
        # A mutant may break the very import.
        history = _history(mutant.campaign)
        for done in range(1, histories + 1):
            signal.alarm(HISTORY_S)
            violation = history(seed + done - 1)
            if violation is not None:
                caught = list(violation)
                break
    except Hangs:
        caught = ["it ends", f"a history took more than {HISTORY_S} s"]
    except Exception as error:
        caught = ["nothing raises", f"{type(error).__name__}: {error}"]
    signal.alarm(0)
    print(json.dumps({"caught": caught, "histories": done}))


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
