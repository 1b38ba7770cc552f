"""SHA-256 of the jars that are downloaded, so that a registry or mirror can give no others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .errors import DownloadFailed

__all__ = ["check_jars", "is_pinned", "pinned_homes"]


@cache
def _pinned() -> dict[str, dict[str, str]]:
    """Home in the cache → file name of a jar → its hash."""
    text = Path(__file__).with_name("jar_hashes.json").read_text(encoding="utf-8")
    pinned: dict[str, dict[str, str]] = json.loads(text)
    return pinned


def is_pinned(home: str) -> bool:
    """Whether the jars of this home in the cache, such as ``kafka-4.1.0``, are known."""
    return home in _pinned()


def pinned_homes(prefix: str) -> list[str]:
    """Return what follows the prefix in the names of the homes that are pinned."""
    return [home.removeprefix(prefix) for home in _pinned() if home.startswith(prefix)]


def check_jars(home: str, jars: Iterable[Path]) -> None:
    """Compare each jar with the hash that is pinned for it, where the home `is_pinned`.

    Raises `DownloadFailed` for a jar that differs, or that nobody expects.
    """
    pinned = _pinned().get(home)
    if pinned is None:
        return
    for jar in jars:
        expected = pinned.get(jar.name)
        if expected is None:
            raise DownloadFailed(
                f"{jar.name} is none of the {len(pinned)} jars that belong to {home}; nothing of "
                "this download is used."
            )
        with jar.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise DownloadFailed(
                f"{jar.name} is damaged, or is another file than the one that was published: its "
                f"SHA-256 is {found}, expected {expected}; nothing of this download is used."
            )
