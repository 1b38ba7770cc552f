"""One harvester of `harvest_shards`, in a process of its own. Each change is a line of JSON."""

from __future__ import annotations

import json
import sys
import threading
import time

from harvest.cli.reap import collect_less_often
from harvest.config.load import parse
from harvest.runtime.process import process
from tests.benchmarks._drain import cpu_s


def main() -> None:
    """Tell how many shards are led and rows published, until the parent ends the process."""
    collect_less_often()
    told = None
    with process(parse(sys.argv[1]), lambda _: None) as running:
        harvester = running.harvester
        threading.Thread(target=harvester.run, daemon=True).start()
        while True:
            found = len(harvester.leading), harvester.stats.published
            if found != told:
                told = found
                print(json.dumps([*found, time.time(), cpu_s()]), flush=True)
            time.sleep(0.01)


if __name__ == "__main__":
    main()
