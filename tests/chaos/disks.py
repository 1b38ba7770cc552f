"""Small disks: a server's data is moved onto a tmpfs of its own, which can then be filled up.

Needs the right to mount. Without it (`possible` says so) the faults that fill disks are left out,
and the result names them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["SmallDisk", "possible"]


def possible() -> bool:
    """Whether this process may mount."""
    here = Path(tempfile.mkdtemp(prefix="marshal-mount-"))
    try:
        with contextlib.closing(SmallDisk(here, 1)):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        shutil.rmtree(here, ignore_errors=True)


class SmallDisk:
    """The folder `path`, with what it holds, on a file system of `size_mb`.

    Nobody may have files open in it. `close` unmounts; the data on it are gone.
    """

    def __init__(self, path: Path, size_mb: int) -> None:
        self.path = path
        self._ballast = path / "ballast"
        owner = path.stat()
        options = f"size={size_mb}m,mode={owner.st_mode & 0o777:o}"
        options += f",uid={owner.st_uid},gid={owner.st_gid}"
        with tempfile.TemporaryDirectory(prefix="marshal-disk-") as aside:
            subprocess.run(["cp", "-a", f"{path}/.", aside], check=True, capture_output=True)
            mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
            subprocess.run(mount, check=True, capture_output=True)
            subprocess.run(["cp", "-a", f"{aside}/.", str(path)], check=True, capture_output=True)

    def fill(self) -> int:
        """Leave no room at all; return how many bytes that took."""
        written = 0
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        written += file.write(b"\0" * size)
        return written

    def empty(self) -> None:
        """Take back what `fill` wrote."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount, now or when the last file is closed."""
        if os.path.ismount(self.path):
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)
