"""The route of a configuration: a name, a template, or ``python:module:function``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from harvest.core.row import Row
from harvest.errors import ConfigurationError, InvalidRecord

__all__ = ["load_route"]

_PYTHON: Final = "python:"


def load_route(route: str | None) -> str | Callable[[Row], str] | None:
    """The function that ``python:module:function`` names; anything else as it is.

    What the function raises becomes `InvalidRecord`. Raises `ConfigurationError`.
    """
    return _function(route) if route is not None and route.startswith(_PYTHON) else route


def _function(route: str) -> Callable[[Row], str]:
    module, _, name = route.removeprefix(_PYTHON).partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"route is {route!r}: write python:module:function ({error})"
        ) from None
    if not callable(found):
        raise ConfigurationError(f"route is {route!r}: {name} is no function")

    def find(row: Row) -> str:
        try:
            return str(found(row))
        except Exception as error:
            raise InvalidRecord(f"{route} failed: {type(error).__name__}: {error}") from error

    return find
