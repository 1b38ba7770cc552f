"""The route of a configuration: a name, a template, or ``python:module:function``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Final

from harvest.core.routes import AnyRoute
from harvest.core.row import Row
from harvest.errors import ConfigurationError, InvalidRecord
from marshal_py.printable import text_of

__all__ = ["load_route", "load_routes"]

_PYTHON: Final = "python:"


def load_routes(route: str | Sequence[str] | None) -> AnyRoute | Sequence[AnyRoute] | None:
    """`load_route` of each, where there are several."""
    if route is None or isinstance(route, str):
        return None if route is None else load_route(route)
    return [load_route(one) for one in route]


def load_route(route: str) -> AnyRoute:
    """The function that ``python:module:function`` names; anything else as it is.

    What the function raises becomes `InvalidRecord`. Raises `ConfigurationError`.
    """
    return _function(route) if route.startswith(_PYTHON) else route


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
            raise InvalidRecord(
                f"{route} failed: {type(error).__name__}: {text_of(error)}"
            ) from error

    return find
