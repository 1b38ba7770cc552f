"""Checking what a file says against a model: unknown keys are errors, no error shows a value."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from harvest.errors import ConfigurationError

__all__ = ["StrictModel", "validated"]

M = TypeVar("M", bound=BaseModel)


class StrictModel(BaseModel):
    """Refuses unknown keys, and never shows what it was given in an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def validated(model: type[M], content: Mapping[str, Any], source: str) -> M:
    """Check `content` against `model`; every problem is told, none shows a value.

    Raises `ConfigurationError`.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = [_problem(model, dict(detail)) for detail in error.errors(include_url=False)]
        raise ConfigurationError(f"{source}: " + "; ".join(problems)) from None


def _problem(model: type[BaseModel], detail: Mapping[str, Any]) -> str:
    path = [str(part) for part in detail["loc"]]
    name = ".".join(path) or "the configuration"
    if detail["type"] != "extra_forbidden":
        text = str(detail["msg"]).removeprefix("Value error, ")
        return f"{name}: {text}" if path else text
    known = _fields_at(model, path[:-1])
    close = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
    return f"{name}: unknown key; {hint}"


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """The names that a mapping at `path` may have."""
    for part in path:
        for name, field in model.model_fields.items():
            if part in (name, field.alias):
                for inner in (field.annotation, *get_args(field.annotation)):
                    if isinstance(inner, type) and issubclass(inner, BaseModel):
                        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]
