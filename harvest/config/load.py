"""Reading a configuration file: our own `reaper.yaml`, or goharvest's, unchanged.

A file with a top-level key ``harvest`` is goharvest's (see `harvest.config.goharvest`); anything
else is ours, and may name environment variables as ``${NAME}``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from harvest.config.goharvest import convert
from harvest.config.model import ReaperConfig
from harvest.config.validation import validated
from harvest.errors import ConfigurationError

__all__ = ["load", "parse"]

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load(path: str | Path) -> ReaperConfig:
    """Read a configuration file. Raises `ConfigurationError`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the configuration {path} cannot be read: {error}") from None
    return parse(text, source=str(path))


def parse(text: str, *, source: str = "the configuration") -> ReaperConfig:
    """Read a configuration from YAML text. Raises `ConfigurationError`."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: a date or number that is none. RecursionError: nested without end.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError(f"{source} is no YAML{where}") from None
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{source} is empty, or no mapping of keys to values")
    try:
        if "harvest" in content:
            return convert(content, source)
        return validated(ReaperConfig, _expanded(dict(content), source), source)
    except RecursionError:  # a YAML alias may stand inside of what it names
        raise ConfigurationError(f"{source} contains itself") from None


def _expanded(value: Any, source: str) -> Any:
    """`value` with each ${NAME} in its strings replaced by the environment variable."""
    if isinstance(value, dict):
        return {key: _expanded(inner, source) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expanded(inner, source) for inner in value]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        if name not in os.environ:
            raise ConfigurationError(
                f"{source} uses ${{{name}}}, and the environment variable {name} is not set"
            )
        return os.environ[name]

    return _VARIABLE.sub(replacement, value)
