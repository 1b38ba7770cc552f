"""Mutants that nobody chose: every comparison, condition, constant and effect, changed in turn.

A tool to find what the others forgot: ``python -m tests.mutation --systematic claimant``; of other
modules with their campaign, ``--systematic marshal_py.client.log_writer:logs``. Some of these
change nothing that anyone could see, so survivors are to be read, not to be counted.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType

from tests.mutation.load import path_of

_OTHER_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OTHER_OPERATOR: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
}
_OTHER_FUNCTION = {"max": "min", "min": "max", "any": "all", "all": "any"}


@dataclass(frozen=True)
class SystematicMutant:
    """The `number`-th change that can be made to a module."""

    name: str
    module: str
    number: int
    campaign: str = "protocol"

    def code(self) -> CodeType:
        """Compile the changed module."""
        path = path_of(self.module)
        tree = ast.parse(path.read_text("utf-8"))
        for number, (_, change) in enumerate(_changes(tree)):
            if number == self.number:
                change()
                return compile(ast.fix_missing_locations(tree), str(path), "exec")
        raise LookupError(self.name)


def systematic(module: str, campaign: str = "protocol") -> list[SystematicMutant]:
    """Return every mutant of a module, ``marshal_py.protocol.claimant`` for one."""
    tree = ast.parse(path_of(module).read_text("utf-8"))
    return [
        SystematicMutant(f"{module}#{number}: {what}", module, number, campaign)
        for number, (what, _) in enumerate(_changes(tree))
    ]


_Change = tuple[str, Callable[[], None]]


def _changes(tree: ast.Module) -> Iterator[_Change]:
    """Yield what can be changed, and how; making one change ends the use of the tree."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if function.name != "__repr__":
            for node in ast.walk(ast.Module(function.body, [])):
                yield from _of_body(function.name, node)
                if isinstance(node, ast.expr):
                    yield from _of_expression(function.name, node)


def _of_body(where: str, node: ast.AST) -> Iterator[_Change]:
    for field in ("body", "orelse"):
        body = getattr(node, field, None)
        if not isinstance(body, list):
            continue
        for at, statement in enumerate(body):
            if _has_effect(statement):
                yield _describe(where, statement, "left out"), _setter(body, at, ast.Pass())
    if isinstance(node, ast.If) and "events is" not in ast.unparse(node.test):
        for value in (True, False):
            yield (
                f"{where}:{node.lineno}: if {ast.unparse(node.test)} → {value}",
                _attribute_setter(node, "test", ast.Constant(value)),
            )


def _has_effect(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call)
    if isinstance(statement, ast.Assign):
        return not isinstance(statement.targets[0], ast.Name | ast.Tuple)
    if isinstance(statement, ast.Return):
        return statement.value is None
    return isinstance(statement, ast.AugAssign | ast.Delete | ast.Continue | ast.Break)


def _of_expression(where: str, node: ast.expr) -> Iterator[_Change]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER_COMPARISON:
        if "events is" not in ast.unparse(node):
            other = _OTHER_COMPARISON[type(node.ops[0])]()
            yield _describe(where, node, type(other).__name__), _setter(node.ops, 0, other)
    elif isinstance(node, ast.BoolOp):
        for at, operand in enumerate(node.values):
            neutral = ast.Constant(isinstance(node.op, ast.And))
            yield (
                f"{where}:{node.lineno}: {ast.unparse(operand)} left out",
                _setter(node.values, at, neutral),
            )
    elif isinstance(node, ast.BinOp) and type(node.op) in _OTHER_OPERATOR:
        operator = _OTHER_OPERATOR[type(node.op)]()
        if not isinstance(node.left, ast.Constant | ast.JoinedStr):
            yield (
                _describe(where, node, type(operator).__name__),
                _attribute_setter(node, "op", operator),
            )
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield (
            _describe(where, node, str(node.value + 1)),
            _attribute_setter(node, "value", node.value + 1),
        )
    elif isinstance(node, ast.Name) and node.id in _OTHER_FUNCTION:
        other_name = _OTHER_FUNCTION[node.id]
        yield _describe(where, node, other_name), _attribute_setter(node, "id", other_name)


def _describe(where: str, node: ast.stmt | ast.expr, change: str) -> str:
    text = ast.unparse(node).replace("\n", " ")
    return f"{where}:{node.lineno}: {text[:70]} → {change}"


def _setter(
    items: list[ast.stmt] | list[ast.cmpop] | list[ast.expr], at: int, new: ast.AST
) -> Callable[[], None]:
    def change() -> None:
        items[at] = new  # type: ignore[call-overload]

    return change


def _attribute_setter(node: ast.AST, name: str, value: object) -> Callable[[], None]:
    def change() -> None:
        setattr(node, name, value)

    return change
