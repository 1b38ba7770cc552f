"""Where commands write files: looked at before the work begins, not when it is done."""

from __future__ import annotations

import os
from pathlib import Path

from marshal_py.errors import ConfigurationError

__all__ = ["check_file", "make_folder"]


def make_folder(option: str, folder: Path) -> None:
    """Make the folder of an option, if need be.

    Raises `ConfigurationError` where it cannot be made, or nothing can be written in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{option} {folder}: {error.strerror}") from None
    _check_writable(option, folder)


def check_file(option: str, file: Path) -> None:
    """Raise `ConfigurationError` where the file of an option cannot be written."""
    if file.is_dir():
        raise ConfigurationError(f"{option} {file}: this is a folder: name a file in it")
    if not file.parent.is_dir():
        raise ConfigurationError(f"{option} {file}: there is no folder {file.parent}")
    _check_writable(option, file if file.exists() else file.parent)


def _check_writable(option: str, path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise ConfigurationError(f"{option} {path}: it may not be written to")
