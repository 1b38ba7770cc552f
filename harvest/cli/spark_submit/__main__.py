"""The command `harvest`, when Spark starts it; otherwise prints where this file is:

spark-submit --master URL "$(python -m harvest.cli.spark_submit)" …
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def run() -> None:
    """Run the command, with the arguments of this process."""
    from harvest.cli.__main__ import main

    sys.argv[0] = "harvest"
    main()


if __name__ == "__main__":
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        run()
    else:
        from marshal_py.cli.output import say

        say(str(Path(__file__).resolve()))
