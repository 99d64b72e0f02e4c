"""Faults made at run time: single edits of the syntax tree of one of torch's own source files.

Each edit is one slip that a person could make: a comparison turned round, ``and`` for ``or``, a statement or an
argument left out. `load` runs an edited file under another name, beside torch's; `in_place` puts the edited function
into torch's own, so that whoever holds it runs the edit.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Path = tuple[tuple[str, int | None], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One edit.

    Attributes:
        id: ``condition-true@GradScaler.step:3``: kind, place, and its number among the edits of that kind there. Lines
            are no part of it, so that an id lives on when text above it changes.
        scope: the class and functions it lies in, outermost first.
        line: in the source.
        before, after: the changed piece, as source.
        statement: the first line of the innermost statement around it.
        path: from the module down to the changed node: fields, and places in those that are lists.
        node: what takes its place; None where it is taken out of a list.
    """

    id: str
    scope: tuple[str, ...]
    line: int
    before: str
    after: str
    statement: str
    path: Path
    node: ast.AST | None

    @property
    def name(self) -> str:
        """Kind, place and the changed text: ``condition-true@GradScaler.step [if x:]``; the same in every torch."""
        return f"{self.id.rpartition(':')[0]} [{self.before}]"


def source_of(module: str) -> str:
    """The source of an installed module."""
    return inspect.getsource(importlib.import_module(module))


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

_Change = tuple[str, ast.AST | None]
"""Kind of the edit, and the node that takes the old one's place, None where nothing does."""


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
            for left_out in node.values:
                rest = [value for value in node.values if value is not left_out]
                yield "operand-removed", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
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
        case ast.With(items=[_]):
            yield "context-removed", ast.If(ast.Constant(True), node.body, [])
        case ast.Raise():
            yield "raise-removed", ast.Pass()
        case ast.Assert():
            yield "assert-removed", ast.Pass()
        case ast.Return(value=ast.expr()):
            yield "return-dropped", ast.Return(ast.Constant(None))


_LEFT_OUT = {
    (ast.Call, "args"): "argument-removed",
    (ast.Call, "keywords"): "argument-removed",
    (ast.Tuple, "elts"): "element-removed",
    (ast.List, "elts"): "element-removed",
    (ast.FunctionDef, "decorator_list"): "decorator-removed",
    (ast.ClassDef, "decorator_list"): "decorator-removed",
    (ast.With, "items"): "context-removed",
}
"""Lists of which one member can be left out."""


def _of_member(parent: ast.AST, field: str, member: ast.AST) -> Iterator[_Change]:
    kind = _LEFT_OUT.get((type(parent), field))
    if kind is None:
        return
    if isinstance(parent, ast.Call) and isinstance(member, ast.expr) and not isinstance(member, ast.Starred):
        return  # without a positional argument a call means another one, or raises
    if isinstance(parent, ast.With) and len(parent.items) == 1:
        return  # see `_of_statement`
    if not (isinstance(parent, ast.Tuple | ast.List) and not isinstance(parent.ctx, ast.Load)):
        yield kind, None


class _Walker:
    """Visits every node that runs: no docstrings, annotations, overload stubs, nor f-string internals.

    Decorators are left out as a whole, not changed.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.edits: list[Edit] = []

    def walk(self, node: ast.AST, path: Path = (), scope: tuple[str, ...] = (), statement: str = "") -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list):
                return
            scope = (*scope, node.name)
        if isinstance(node, ast.stmt):
            statement = _show(node)
        for field, value in ast.iter_fields(node):
            if field in _PASSED_OVER:
                continue
            listed = isinstance(value, list)
            for number, child in enumerate(value if listed else [value]):
                if isinstance(child, ast.AST) and not _is_docstring(child):
                    below: Path = (*path, (field, number if listed else None))
                    around = _show(child) if isinstance(child, ast.stmt) else statement
                    for kind, new in _changes(node, field, child):
                        self._add(kind, child, new, below, scope, around)
                    if field != "decorator_list":
                        self.walk(child, below, scope, around)

    def _add(
        self, kind: str, old: ast.AST, new: ast.AST | None, path: Path, scope: tuple[str, ...], statement: str
    ) -> None:
        place = f"{kind}@{'.'.join(scope) or 'module'}"
        self.counts[place] = self.counts.get(place, 0) + 1
        self.edits.append(
            Edit(
                id=f"{place}:{self.counts[place]}",
                scope=scope,
                line=getattr(old, "lineno", 0),
                before=_show(old),
                after="nothing" if new is None else _show(new),
                statement=statement,
                path=path,
                node=new,
            )
        )


def _changes(parent: ast.AST, field: str, node: ast.AST) -> Iterator[_Change]:
    if field == "decorator_list" or isinstance(node, ast.withitem):
        yield from _of_member(parent, field, node)
    elif not isinstance(node, ast.FormattedValue):
        yield from _of_statement(node)
        yield from _of_expression(node)
        yield from _of_member(parent, field, node)


_PASSED_OVER = {"annotation", "returns", "ctx", "op", "ops"}


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _show(node: ast.AST) -> str:
    """The first line of a node's source, without its body."""
    match node:
        case ast.If():
            return f"if {ast.unparse(node.test)}:"
        case ast.With():
            return f"with {', '.join(map(ast.unparse, node.items))}:"
        case ast.FunctionDef():
            return f"def {node.name}"
        case ast.ClassDef():
            return f"class {node.name}"
    return next(iter(ast.unparse(node).splitlines()), "")


def edits(source: str) -> list[Edit]:
    """Every edit of a module, in the order of its source."""
    walker = _Walker()
    walker.walk(ast.parse(source))
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
        getattr(parent, field)[number : number + 1] = [] if edit.node is None else [edit.node]
    return ast.fix_missing_locations(tree)


def load(tree: ast.Module, name: str) -> types.ModuleType:
    """Run an edited module under that name, by which pickle finds its classes.

    Raises:
        Exception: whatever the module raises while it is imported: such an edit makes no faulty program.
    """
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(tree, name, "exec"), module.__dict__)  # noqa: S102 - the edited module is what is to be run
    return module


@contextmanager
def in_place(module: str, edit: Edit) -> Iterator[None]:
    """Torch's own module with an edit made in it, until the end of the block.

    The outermost function around the edit keeps its identity and gets the edited code and defaults; of an edit outside
    functions, the names of the module that are no functions or classes take the edited values, and what lost a
    decorator is replaced wherever a module of torch names it.

    Raises:
        Exception: whatever the edited module raises while it is imported.
    """
    owner = importlib.import_module(module)
    name = f"amp_checks_edited.{module}"
    tree = edited(source_of(module), edit)
    _keep_class_cell(tree, owner, edit.scope)
    try:
        new = load(tree, name)
    finally:
        del sys.modules[name]
    undo = _exchange(owner, new, edit)
    try:
        yield
    finally:
        for owner_, name, value in reversed(undo):
            setattr(owner_, name, value)


def _keep_class_cell(tree: ast.Module, owner: types.ModuleType, scope: tuple[str, ...]) -> None:
    """A method that names ``super()`` must go on closing over its class, or the edited code does not fit into it."""
    outer = _outermost_function(owner, owner, scope)
    if outer is None or "__class__" not in outer[0].__code__.co_freevars:
        return
    method = next(
        node
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef) and each.name == scope[0]
        for node in ast.walk(each)
        if isinstance(node, ast.FunctionDef) and node.name == outer[0].__name__
    )
    method.body.append(ast.If(ast.Constant(False), [ast.Expr(ast.Name("__class__", ast.Load()))], []))
    ast.fix_missing_locations(tree)


_Kept = list[tuple[Any, str, Any]]
"""What was there before: owner, attribute, value."""


def _exchange(old: types.ModuleType, new: types.ModuleType, edit: Edit) -> _Kept:
    """Put the edited part of ``new`` into ``old``."""
    if not edit.scope:
        return _exchange_values(old, new)
    outer = _outermost_function(old, new, edit.scope)
    if outer is None or (edit.id.startswith("decorator-removed") and edit.scope[-1] == outer[0].__name__):
        return _exchange_references(getattr(old, edit.scope[0]), getattr(new, edit.scope[0]))
    kept: _Kept = []
    function, edited_function = outer
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        kept.append((function, name, getattr(function, name)))
        setattr(function, name, getattr(edited_function, name))
    return kept


def _exchange_references(old: Any, new: Any) -> _Kept:
    """Wherever a module of torch names the old object."""
    kept: _Kept = []
    for holder in [each for name, each in sys.modules.items() if name.startswith("torch")]:
        for name, value in list(vars(holder).items()):
            if value is old:
                kept.append((holder, name, value))
                setattr(holder, name, new)
    return kept


def _exchange_values(old: types.ModuleType, new: types.ModuleType) -> _Kept:
    kept: _Kept = []
    for name, value in list(vars(old).items()):
        if _is_value(name, value) and vars(new).get(name) is not value:
            kept.append((old, name, value))
            if name in vars(new):
                setattr(old, name, vars(new)[name])
            else:
                delattr(old, name)
    return kept


def _is_value(name: str, value: object) -> bool:
    """Whether a module's name is a value of its own: no function, no class, none of Python's own names."""
    return (not name.startswith("__") or name == "__all__") and not isinstance(value, types.FunctionType | type)


def _outermost_function(old: Any, new: Any, scope: tuple[str, ...]) -> tuple[Any, Any] | None:
    """The outermost function of the scope in both modules, below decorators that keep it."""
    for name in scope:
        old, new = (inspect.getattr_static(owner, name) for owner in (old, new))
        old, new = (getattr(each, "__func__", each) for each in (old, new))  # a static method's function
        if not isinstance(old, type):
            return inspect.unwrap(old), inspect.unwrap(new)
    return None
