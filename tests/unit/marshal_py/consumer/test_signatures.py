"""Functions of the user's: whether they can be called as they will be."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from marshal_py.consumer.signatures import is_coroutine_function, takes
from marshal_py.errors import ConfigurationError


def one(message: Any) -> None: ...


def two(message: Any, claim: Any) -> None: ...


def keyword(message: Any, *, claim: Any) -> None: ...


async def coroutine(message: Any) -> None: ...


class Plain:
    def __call__(self, message: Any) -> None: ...


class Coroutine:
    async def __call__(self, message: Any) -> None: ...


@pytest.mark.parametrize("function", [one, Plain(), coroutine, partial(two, 1), print])
def test_what_takes_one_argument(function: Any) -> None:
    takes("handler", function, "(message)", (1,))


@pytest.mark.parametrize("function", [two, keyword, partial(one, 1), lambda: None])
def test_what_does_not_is_refused_before_anything_starts(function: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"handler = .* is called with \(message\)"):
        takes("handler", function, "(message)", (1,))


def test_what_is_given_by_name_counts() -> None:
    takes("handler", keyword, "(message, claim)", (1,), {"claim": 2})
    with pytest.raises(ConfigurationError):
        takes("handler", one, "(message, claim)", (1,), {"claim": 2})


@pytest.mark.parametrize("function", ["f", None, 7])
def test_what_is_no_function_is_refused(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a function"):
        takes("handler", function, "(message)", (1,))


def test_what_is_to_be_awaited() -> None:
    """A coroutine that nobody awaits does nothing, and its message would count as done."""
    awaited: list[Any] = [coroutine, Coroutine(), partial(coroutine, 1)]
    assert all(map(is_coroutine_function, [*awaited, partial(partial(coroutine))]))
    plain: list[Any] = [one, Plain(), partial(one, 1), print]
    assert not any(map(is_coroutine_function, plain))
