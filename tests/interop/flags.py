"""Command-line flags as Go's `flag` package takes them: `-name value`, `-name=value`, `-switch`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Final

_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION: Final = re.compile(r"(?:[0-9]*\.?[0-9]+(?:ns|us|µs|ms|s|m|h))+")
_PART: Final = re.compile(r"([0-9]*\.?[0-9]+)(ns|us|µs|ms|s|m|h)")


class Flags:
    """`defaults` names the flags: a bool is a switch, anything else takes a value."""

    def __init__(self, args: list[str], defaults: dict[str, str | bool]) -> None:
        self._values: dict[str, str | bool] = dict(defaults)
        rest = list(args)
        while rest:
            word = rest.pop(0)
            name, equals, value = word.lstrip("-").partition("=")
            if not word.startswith("-") or name not in defaults:
                sys.exit(f"flag provided but not defined: {word}; there are {sorted(defaults)}")
            if isinstance(defaults[name], bool):
                self._values[name] = not equals or value.lower() in ("1", "t", "true")
            elif equals:
                self._values[name] = value
            elif rest:
                self._values[name] = rest.pop(0)
            else:
                sys.exit(f"flag needs an argument: -{name}")

    def text(self, name: str) -> str:
        return str(self._values[name])

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of some words; the process ends if it is another."""
        if self.text(name) not in choices:
            sys.exit(f"invalid value {self.text(name)!r} for flag -{name}: one of {choices}")
        return self.text(name)

    def flag(self, name: str) -> bool:
        return self._values[name] is True

    def number(self, name: str) -> int:
        return int(self.text(name) or 0)

    def seconds(self, name: str) -> float:
        """A duration such as `1m30s`, or a number of seconds."""
        text = self.text(name)
        if _DURATION.fullmatch(text):
            return sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(text))
        return float(text or 0)
