"""Faults made at run time: single edits of the syntax tree of the installed ``torch/amp/grad_scaler.py``.

Each edit is one slip that a person could make: a comparison turned round, ``and`` for ``or``, a statement left out. The
edited module is compiled under another name, and its `GradScaler` takes the place of torch's in a `Backend`; torch
itself is not touched.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

Path = tuple[tuple[str, int | None], ...]
MODULE = "amp_checks_edited_grad_scaler"
"""Name of the edited module while it is loaded: pickle must find its classes by it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One edit.

    Attributes:
        id: ``if-true@GradScaler.step:3``: kind, place, and its number among the edits of that kind there. Lines are
            no part of it, so that an id lives on when text above it changes.
        line: in the source.
        before, after: the changed piece, as source.
        path: from the module down to the changed node: fields, and places in those that are lists.
        node: what takes its place.
    """

    id: str
    line: int
    before: str
    after: str
    path: Path
    node: ast.AST


def installed_source() -> str:
    """The source of the installed torch's scaler."""
    from torch.amp import grad_scaler

    return inspect.getsource(grad_scaler)


_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}
_BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
}

_Change = tuple[str, ast.AST]
"""Kind of the edit, and the node that takes the old one's place."""


def _of_comparison(node: ast.Compare) -> Iterator[_Change]:
    for kind, table in (("comparison-flipped", _COMPARISONS), ("boundary-moved", _BOUNDARIES)):
        if type(node.ops[0]) in table:
            yield kind, ast.Compare(node.left, [table[type(node.ops[0])](), *node.ops[1:]], node.comparators)


def _of_constant(node: ast.Constant) -> Iterator[_Change]:
    value = node.value
    if isinstance(value, bool):
        yield "constant-changed", ast.Constant(not value)
    elif isinstance(value, int | float):
        yield "constant-changed", ast.Constant(value + 1)
    elif isinstance(value, str):
        yield "constant-changed", ast.Constant(value + "?" if value else "?")


def _of_expression(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.Compare():
            yield from _of_comparison(node)
        case ast.Constant():
            yield from _of_constant(node)
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _ARITHMETIC:
            swapped = copy.deepcopy(node)
            swapped.op = _ARITHMETIC[type(node.op)]()
            yield "arithmetic-swapped", swapped
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and-or-swapped", ast.BoolOp(other, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "not-dropped", node.operand


def _of_statement(node: ast.AST) -> Iterator[_Change]:
    match node:
        case ast.If() | ast.IfExp() | ast.While():
            for kind, value in (("condition-true", True), ("condition-false", False)):
                forced = copy.copy(node)
                forced.test = ast.Constant(value)
                yield kind, forced
        case ast.Expr(value=ast.Call()):
            yield "call-removed", ast.Pass()
        case ast.Assign() | ast.AugAssign() | ast.Delete():
            yield "assignment-removed", ast.Pass()
        case ast.AnnAssign(value=ast.expr()):
            yield "assignment-removed", ast.Pass()
        case ast.Raise():
            yield "raise-removed", ast.Pass()
        case ast.Assert():
            yield "assert-removed", ast.Pass()
        case ast.Return(value=ast.expr()):
            yield "return-dropped", ast.Return(ast.Constant(None))


class _Walker:
    """Visits every node that runs: no docstrings, annotations, decorators, overload stubs, nor f-string internals."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.edits: list[Edit] = []

    def walk(self, node: ast.AST, path: Path, scope: tuple[str, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list):
                return
            scope = (*scope, node.name)
        for field, value in ast.iter_fields(node):
            if field in _PASSED_OVER:
                continue
            listed = isinstance(value, list)
            for number, child in enumerate(value if listed else [value]):
                if isinstance(child, ast.AST) and not _is_docstring(child):
                    below: Path = (*path, (field, number if listed else None))
                    if not isinstance(child, ast.FormattedValue):
                        self._edit(child, below, scope)
                    self.walk(child, below, scope)

    def _edit(self, old: ast.AST, path: Path, scope: tuple[str, ...]) -> None:
        for kind, new in (*_of_statement(old), *_of_expression(old)):
            place = f"{kind}@{'.'.join(scope) or 'module'}"
            self.counts[place] = self.counts.get(place, 0) + 1
            self.edits.append(
                Edit(
                    id=f"{place}:{self.counts[place]}",
                    line=getattr(old, "lineno", 0),
                    before=_show(old),
                    after=_show(new),
                    path=path,
                    node=new,
                )
            )


_PASSED_OVER = {"annotation", "returns", "decorator_list", "ctx", "op", "ops"}


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _show(node: ast.AST) -> str:
    """The first line of a node's source."""
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}:"
    return ast.unparse(node).splitlines()[0]


def edits(source: str) -> list[Edit]:
    """Every edit of a module, in the order of its source."""
    walker = _Walker()
    walker.walk(ast.parse(source), (), ())
    return walker.edits


def edited(source: str, edit: Edit) -> ast.Module:
    """The module with one edit made."""
    tree = ast.parse(source)
    parent: Any = tree
    for field, number in edit.path[:-1]:
        held = getattr(parent, field)
        parent = held if number is None else held[number]
    field, number = edit.path[-1]
    if number is None:
        setattr(parent, field, edit.node)
    else:
        getattr(parent, field)[number] = edit.node
    return ast.fix_missing_locations(tree)


def load(tree: ast.Module) -> types.ModuleType:
    """Run the edited module under the name `MODULE`.

    Raises:
        Exception: whatever the module raises while it is imported: such an edit makes no faulty scaler.
    """
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    exec(compile(tree, MODULE, "exec"), module.__dict__)  # noqa: S102 - the edited module is what is to be run
    return module
