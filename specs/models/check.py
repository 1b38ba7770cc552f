"""Explore the models in this folder, whole and with each rule left out, and print the table.

    python specs/models/check.py [--large] [--json]

Needs spin and a C compiler. A model as it is must have no violation in its whole state space; with
a rule left out, it must have one. Exit code 0 if so, 1 if not, 3 without spin or compiler.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
TIMEOUT_S = 1_800


@dataclass(frozen=True)
class Model:
    """A model, the rules that can be left out of it, and its size for every day and for once."""

    name: str
    mutations: tuple[str, ...]
    usual: tuple[str, ...]
    large: tuple[str, ...]
    liveness: bool = False
    """Whether it has a formula that no infinite history may break, instead of assertions."""


MODELS = (
    Model(
        "claims",
        (
            "NO_SESSION_VERSION",
            "NO_OWN_VERSION",
            "NO_EPOCH",
            "OTHER_INSTANCE",
            "ZOMBIE",
            "SHORT_WAIT",
            "NO_MARGIN",
            "FROM_READING",
            "RENEW_AFTER_RELEASE",
            "ACT_AFTER_RELEASE",
        ),
        ("UNREAD=2",),
        ("UNREAD=3",),
    ),
    Model(
        "sessions",
        ("NO_RECONCILE", "OTHER_INSTANCE"),
        ("CLIENTS=2",),
        ("CLIENTS=3",),
        liveness=True,
    ),
    Model(
        "level",
        ("NO_FOLLOW_CHECK", "CLAIM_FOLLOWS_ALL", "NO_JOIN_CHECK", "JOIN_ANYWAY"),
        (),
        (),
    ),
    Model(
        "genesis",
        ("NO_COMPARE", "ANY_BASE", "CLAIM_FIRST", "KEEP_CLAIMS"),
        ("TICKS=3",),
        ("TICKS=5",),
    ),
    Model(
        "amo",
        ("DELIVER_EARLY", "NO_EPOCH", "NOT_AHEAD", "ANY_ANSWER"),
        ("UNREAD=2",),
        ("UNREAD=2", "MESSAGES=4"),
    ),
    Model(
        "book",
        ("NO_EPOCH", "SPLIT_BEGUN", "BEYOND_END", "CLIENT_CHOOSES", "RELEASE_ENDS"),
        ("GRANTS=3",),
        ("GRANTS=4",),
    ),
    Model(
        "mark",
        ("MARK_LATE", "NO_FENCE", "NO_CHECKPOINT", "NO_CLEAR", "PURGE_EARLY", "GUESS"),
        ("ROWS=2",),
        ("ROWS=3",),
    ),
    Model(
        "range",
        ("NO_FENCE", "NO_CHECKPOINT", "NO_GAPS", "DEAD_AT_ONCE", "HOLDERS_LATE", "GUESS"),
        ("IDS=2",),
        ("IDS=3",),
    ),
)


@dataclass
class Outcome:
    """What the checker found for one model or mutation."""

    model: str
    mutation: str
    violation: bool
    complete: bool
    """Whether all states were seen, or the search ended at a violation."""
    states: int
    depth: int
    seconds: float

    @property
    def as_expected(self) -> bool:
        """A violation where a rule is left out, and only there."""
        return self.complete and self.violation == bool(self.mutation)


def missing() -> str | None:
    """Say what is not installed; None if all is there."""
    tools = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    return f"{' and '.join(tools)} not installed: apt-get install spin gcc" if tools else None


def check(model: Model, mutation: str, *, large: bool = False) -> Outcome:
    """Explore one model, with one rule left out ("" for none): breadth first, but for liveness.

    Raises `RuntimeError` when spin or the compiler refuses it.
    """
    flags = [f"-D{flag}" for flag in (model.large if large else model.usual)]
    if mutation:
        flags.append(f"-D{mutation}")
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _run(["spin", "-a", *flags, str(FOLDER / f"{model.name}.pml")], folder)
        search = [] if model.liveness else ["-DSAFETY", "-DBFS"]
        speed = "-O1" if large else "-O0"  # compiling takes longer than exploring small worlds
        _run(["gcc", speed, "-DNOFAIR", *search, "-o", "pan", "pan.c"], folder)
        told = _run(
            ["./pan", "-w24", *(["-a", "-E", "-m2000000"] if model.liveness else [])], folder
        )
    states = re.search(r"(\d+) states, stored", told)
    depth = re.search(r"depth reached (\d+)", told)
    errors = re.search(r"errors: (\d+)", told)
    if states is None or depth is None or errors is None:
        raise RuntimeError(f"{model.name} {mutation}: the checker said:\n{told}")
    violation = errors[1] != "0"
    return Outcome(
        model.name,
        mutation,
        violation,
        violation or not re.search("Search not completed|too small|out of memory", told),
        int(states[1]),
        int(depth[1]),
        round(time.monotonic() - began_s, 1),
    )


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    told = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{told}")
    return told


def main() -> int:
    """Check all models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--large", action="store_true", help="larger worlds: minutes, and 3 GB")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if lacks := missing():
        print(lacks, file=sys.stderr)
        return 3
    outcomes = []
    if not options.json:
        print(f"{'model':<10}{'rule left out':<22}{'violation':<13}{'states':>12}{'s':>8}")
    for model in MODELS:
        for mutation in ("", *model.mutations):
            outcome = check(model, mutation, large=options.large)
            outcomes.append(outcome)
            if not options.json:
                found = "found" if outcome.violation else "never"
                note = "" if outcome.as_expected else "  <- not as expected"
                print(
                    f"{model.name:<10}{mutation or '-':<22}{found:<13}"
                    f"{outcome.states:>12,}{outcome.seconds:>8.1f}{note}",
                    flush=True,
                )
    passed = all(outcome.as_expected for outcome in outcomes)
    if options.json:
        table = [{**asdict(o), "as_expected": o.as_expected} for o in outcomes]
        print(json.dumps({"passed": passed, "outcomes": table}, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
