"""`harvest`, and `python -m harvest.cli`."""

import sys

from harvest.cli.stop_signals import STOP_SIGNALS

__all__ = ["main"]


def main() -> None:
    """Entry point: of a harvesting process, signals are handled before anything else is done."""
    harvests = sys.argv[1:2] == ["reap"]
    if harvests:
        STOP_SIGNALS.install()
    try:
        from harvest.cli import app

        app.main()
    finally:
        if harvests:
            STOP_SIGNALS.ignore()


if __name__ == "__main__":
    main()
