"""Wall clocks that jump, one for each client process, by a library that is preloaded.

Needs a C compiler. Without one (`build` returns None) clocks do not jump, and the result says so.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

__all__ = ["WallClocks", "build"]

_SOURCE = Path(__file__).with_name("wall_clock.c")


def build(folder: Path) -> Path | None:
    """Compile the library; None where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "wall_clock.so"
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    return library


class WallClocks:
    """The wall clocks of processes, by name. A process keeps its clock over restarts."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder, self._library = folder, library

    def environment(self, name: str) -> dict[str, str]:
        """What a process needs in its environment to have such a clock."""
        if not self._file(name).exists():
            self._file(name).write_bytes(bytes(8))
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._file(name))}

    def off_s(self, name: str) -> float:
        """How far the clock of a process is ahead."""
        (off_ns,) = struct.unpack("=q", self._file(name).read_bytes())
        return float(off_ns / 1e9)

    def set(self, name: str, off_s: float) -> None:
        """Put the clock of a process forward, or back; 0 for right."""
        with self._file(name).open("r+b", buffering=0) as file:  # in place: it is mapped
            file.write(struct.pack("=q", int(off_s * 1e9)))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.clock"
