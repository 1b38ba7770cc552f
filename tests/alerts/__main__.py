"""Record what the alert rules look at, from real processes in each failure: 20 minutes."""

from __future__ import annotations

import argparse
import logging
import tempfile
import threading
import traceback
from pathlib import Path

from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.alerts.worlds import WORLDS, Servers

SERIES = Path(__file__).parent / "series"


def main() -> int:
    """Record; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.alerts", description=__doc__)
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help=f"of {', '.join(WORLDS)}")
    parser.add_argument("--to", type=Path, default=SERIES, help="the folder for the series")
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")
    wanted = options.worlds or list(WORLDS)
    if unknown := set(wanted) - set(WORLDS):
        parser.error(f"no such world: {min(unknown)}")
    failed: list[str] = []

    def record(name: str, servers: Servers) -> None:
        try:
            WORLDS[name](servers, options.to)
        except Exception:
            traceback.print_exc()
            failed.append(name)

    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedKafka() as kafka,
        EmbeddedPostgres(settings={"wal_init_zero": "off"}) as postgres,
    ):
        servers = Servers(kafka, postgres, Path(folder))
        threads = [threading.Thread(target=record, args=(name, servers)) for name in wanted]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("recorded:", ", ".join(name for name in wanted if name not in failed) or "nothing")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
