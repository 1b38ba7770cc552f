"""Functions of the user's, looked at before anything starts: can they be called as they will be?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from marshal_py.errors import ConfigurationError

__all__ = ["is_coroutine_function", "takes"]


def takes(
    name: str,
    function: Any,
    called: str,
    given: tuple[Any, ...],
    named: Mapping[str, Any] | None = None,
) -> None:
    """Raise `ConfigurationError` for a function that cannot be called as it will be."""
    if not callable(function):
        raise ConfigurationError(f"{name} = {function!r} must be a function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some written in C tell nothing
        return
    try:
        signature.bind(*given, **(named or {}))
    except TypeError as error:
        raise ConfigurationError(
            f"{name} = {function!r} takes {signature} and is called with {called}: {error}"
        ) from None


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether what `function` returns is to be awaited."""
    while isinstance(function, partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004 (whether the call is a coroutine)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
