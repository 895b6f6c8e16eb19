"""Every function and dataclass of a package checks its types and shapes while the tests run.

jaxtyping's own import hook checks the same at several times the cost: it binds the arguments and
opens a scope of dimensions for each call of any function, checks arguments twice, and compiles the
checks of a nested function each time that its definition runs. The suite spent most of its time
there. Here beartype checks each call once, a call has a scope of dimensions only where an
annotation names an array, and the checks of a nested function are compiled once.
"""

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from inspect import isclass, isgeneratorfunction
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, get_args, get_type_hints

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError, jaxtyped


class Compiled(NamedTuple):
    """The checks of one function in the source."""

    function: FunctionType  # as it was first defined
    checks: Any  # calls it
    arrays: bool  # an annotation names an array: dimensions need a scope


_beartype = beartype(conf=BeartypeConf(violation_type=TypeCheckError))
# By the identity of the code: the code of two dataclasses' __init__ is equal where fields have the
# same names, whatever their types.
_compiled: dict[int, Compiled] = {}


def install(package: str) -> None:
    """From now on, modules of the package are imported with checks."""
    if package in sys.modules:
        raise RuntimeError(f"{package} is imported already: its functions would go unchecked")
    sys.meta_path.insert(0, _Finder(package))


def checked(made: Any) -> Any:
    """A function with checks; a dataclass whose `__init__` has them."""
    if not isclass(made):
        return _checked(made)
    if is_dataclass(made) and isinstance(vars(made).get("__init__"), FunctionType):
        made.__init__ = _checked(made.__init__)
    return made


def _checked(function: FunctionType) -> Callable[..., Any]:
    code = id(function.__code__)
    if code not in _compiled:
        first = _with_hints(function)
        arrays = any(map(_names_an_array, first.__annotations__.values()))
        _compiled[code] = Compiled(first, _beartype(first), arrays)
    checks = _rebound(_compiled[code], function)
    if not _compiled[code].arrays:
        return checks
    # A generator's arguments are checked at its first step, in a scope that is not its own.
    if isgeneratorfunction(function):
        return jaxtyped(function, typechecker=_beartype)

    @wraps(function)
    def in_a_scope(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with jaxtyped("context"):
            return checks(*args, **kwargs)

    return in_a_scope


def _with_hints(function: FunctionType) -> FunctionType:
    """The function with annotations that are no strings; without those that have no value here.

    Such as names that are imported for type checkers alone.
    """
    hints: dict[str, Any] = {}
    for name, hint in function.__annotations__.items():

        def alone() -> None: ...

        alone.__annotations__ = {name: hint}
        try:
            hints |= get_type_hints(alone, function.__globals__, include_extras=True)
        except NameError:
            continue
    return _copy(function, hints)


def _copy(function: FunctionType, hints: dict[str, Any]) -> FunctionType:
    parts = function.__name__, function.__defaults__, function.__closure__
    made = FunctionType(function.__code__, function.__globals__, *parts)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    made.__annotations__ = hints
    return made


def _rebound(compiled: Compiled, function: FunctionType) -> Callable[..., Any]:
    """The checks of a function's first definition, calling this one: its closure is another."""
    checks = compiled.checks
    if checks is compiled.function:  # nothing to check
        return function
    values = {
        name: function if value is compiled.function else value
        for name, value in checks.__kwdefaults__.items()
    }
    if function not in values.values():
        raise RuntimeError("beartype no longer holds the function that it checks as a default")
    made = FunctionType(checks.__code__, checks.__globals__, function.__name__)
    made.__kwdefaults__ = values
    return wraps(function)(made)


def _names_an_array(hint: Any) -> bool:
    if isinstance(hint, list | tuple):  # the arguments of a Callable
        return any(map(_names_an_array, hint))
    if isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(map(_names_an_array, get_args(hint)))


class _Decorator(ast.NodeTransformer):
    """Decorates functions innermost, so that registries get them checked, and classes outermost."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if any("no_type_check" in ast.unparse(each) for each in node.decorator_list):
            return node
        self.generic_visit(node)
        node.decorator_list.append(_name(node))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        node.decorator_list.insert(0, _name(node))
        return node


def _name(node: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Name(_NAME, ast.Load()), node)


_NAME = "_checked_in_tests"


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Never from or to the cache of bytecode, which holds the modules without checks."""
        path = self.get_filename(fullname)
        tree = _Decorator().visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[_NAME] = checked
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self.package:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
