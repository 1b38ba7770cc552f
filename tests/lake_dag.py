"""The DAG of docs/deploy/lake_dag.py, run by Airflow itself; the commands are stand-ins.

    nox -s airflow

Shows which commands it starts, in which order, and that a day which was not as expected, or rows
that could not be had, make the run of the DAG a failed one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

DAG = Path(__file__).resolve().parents[1] / "docs" / "deploy" / "lake_dag.py"
DAY = "2026-11-22"
DSN = "dbname=shop user=lake"
ROWS = f"harvest lake --lake /data/lake --outbox shop/outbox --database {DSN}"
OLD_ROWS = "harvest lake --lake /data/lake --outbox shop/outbox --parquet /data/archive"
RUN = "marshal lake run -b kafka:9092 --lake /data/lake --published orders --day 2026-11-21"
MAINTAIN = "marshal lake maintain --lake /data/lake"
CASES = {
    "": ("success", [ROWS, OLD_ROWS, RUN, MAINTAIN]),
    "lake run": ("failed", [ROWS, OLD_ROWS, RUN, MAINTAIN]),
    "lake --lake": ("failed", [ROWS, MAINTAIN]),
    "lake maintain": ("failed", [ROWS, OLD_ROWS, RUN, MAINTAIN]),
}
"""Words of a command that fails → how the run ends, and what was started."""


def run_of(home: Path, failing: str) -> tuple[str, list[str]]:
    """How a run ends when the commands with these words fail, and the commands that it starts."""
    said = home / "said"
    said.write_text("")
    for name in ("marshal", "harvest"):
        program = home / "bin" / name
        fails = f'case "$*" in *"{failing}"*) exit 1;; esac' if failing else ""
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {said}\n{fails}\n')
        program.chmod(0o755)
    argv = [sys.executable, "-m", "airflow", "dags", "test", "marshal_lake", DAY]
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "OUTBOX_DSN": DSN,
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
    }
    if not (home / "airflow.db").exists():
        migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
        subprocess.run(migrate, env=environment, check=True, capture_output=True)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)
    finished = [line for line in done.stdout.splitlines() if "DagRun Finished" in line]
    assert finished, done.stdout[-3000:] + done.stderr[-3000:]
    state = finished[-1].partition(", state=")[2].partition(",")[0]
    return state, said.read_text().splitlines()


def main() -> int:
    """Run each case; exit with 1 if one is not as it should be."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for each in ("dags", "bin"):
            (home / each).mkdir()
        text = DAG.read_text()
        assert '"retries": 2' in text  # each after ten minutes: not here
        (home / "dags" / DAG.name).write_text(text.replace('"retries": 2', '"retries": 0'))
        for failing, wanted in CASES.items():
            found = run_of(home, failing)
            print(f"{failing or 'nothing'} fails: {found}", flush=True)
            if found != wanted:
                wrong += 1
                print(f"  expected {wanted}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
