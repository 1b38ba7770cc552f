"""`python -m tests.fuzz TARGET --seconds 60`: coverage-guided, until something is found."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

NAMES = [
    "record",
    "log",
    "snapshot",
    "subscription",
    "version_1",
    "properties",
    "yaml",
    "setting",
    "reaper_yaml",
    "connection_string",
    "table_name",
    "answer",
    "row",
    "headers",
    "checkpoint",
    "command_line",
]


def main() -> int:
    """Run one target. Ends with 0 if nothing was found, 3 without atheris."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris", file=sys.stderr)
        return 3
    with atheris.instrument_imports(include=["marshal_py", "harvest", "msgpack", "h11", "typer"]):
        from tests.fuzz.seeds import SEEDS, WORDS
        from tests.fuzz.targets import TARGETS
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        dictionary = Path(folder) / "words"
        with dictionary.open("w") as lines:
            for word in filter(None, WORDS.get(options.target, ())):
                print('"', *(f"\\x{byte:02x}" for byte in word.encode()), '"', sep="", file=lines)
        for number, seed in enumerate(SEEDS.get(options.target, ())):
            (corpus / str(number)).write_bytes(seed)
        arguments = [
            sys.argv[0],
            f"-max_total_time={options.seconds}",
            "-timeout=5",
            "-rss_limit_mb=1024",
            "-max_len=4096",
            "-close_fd_mask=0",
            f"-artifact_prefix={tempfile.gettempdir()}/",
            *([f"-dict={dictionary}"] if options.target in WORDS else []),
            str(corpus),
        ]
        atheris.Setup(arguments, TARGETS[options.target])
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
