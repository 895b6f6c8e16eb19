"""What the source itself has to be: names with one meaning, short functions, a complete surface."""

import ast
import dataclasses
import importlib
import inspect
import re
import typing
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import unweave

ROOT = Path(unweave.__file__).parent
MOST_LINES = 60
# Class names that two modules define, each with its reason.
TWICE: dict[str, str] = {}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def test_no_public_class_name_is_defined_twice():
    homes = defaultdict(list)
    for path, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path))
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert {name: twice[name] for name in twice if name not in TWICE} == {}
    assert sorted(TWICE.keys() - twice.keys()) == []  # an exception that is not needed any more


# Names that need a dictionary.
STRANGE = re.compile(
    r"(^|_)(made|built|drives?|collect(ed|or)?|toggles?|chance|wish(es|ed)?|standard"
    r"|judge|in_turn|told|sown)(_|$)",
    re.IGNORECASE,
)
USUAL = {"standard_error"}  # the field's own word


def names_of(tree: ast.Module) -> Iterator[str]:
    """Everything that a module names: functions, classes, arguments, variables and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_names_are_words_of_the_field():
    found = {
        f"{path}: {name}"
        for path, tree in trees()
        for name in (path.stem, *names_of(tree))
        if STRANGE.search(name) and name not in USUAL
    }
    assert sorted(found) == []
    for name in ("made", "_APART_made", "drive_engine", "Wishes", "in_turn"):
        assert STRANGE.search(name)


# Each file of these folders is one plug-in, or one command: its names are read with the file's.
ONE_EACH = (
    *("ablations", "behaviours", "cli", "decomposition/rulesets", "model/architectures"),
    *("model/synthetic", "nodes", "scores", "search"),
)
# Functions and constants that two modules define with one meaning, by what that is.
SAME_MEANING = {
    "shapes and records": "Index Pattern Positions Record Residual Say Weights S",
    "kernels beside their eager twins": "attention gate linear norm rotate ACTIVATIONS FAMILIES",
    "each file or page has its own": "FIGURES MOST MOST_TOKENS NEGATIVE "
    "POSITIVE SCHEMA_VERSION SCRIPTS SHOWN ",
    "one for models, one for their files": "is_cached read_json tensors",
    "the public function, and its figure, part or table": "block curves number random_test "
    "sweep table",
    "edges by name, and split into batches": "edge_ends",
}


def assigned(node: ast.stmt) -> list[str]:
    """The functions and constants that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    every = [one for target in targets for one in ast.walk(target)]
    return [one.id for one in every if isinstance(one, ast.Name)]


def test_no_public_function_or_constant_is_defined_twice():
    homes = defaultdict(set)
    for path, tree in trees():
        if path.as_posix().startswith(ONE_EACH):
            continue
        for node in tree.body:
            for name in assigned(node):
                if not name.startswith("_"):
                    homes[name].add(str(path))
    twice = {name: sorted(places) for name, places in homes.items() if len(places) > 1}
    known = {name for names in SAME_MEANING.values() for name in names.split()}
    assert {name: twice[name] for name in twice if name not in known} == {}
    assert sorted(known - twice.keys()) == []  # an exception that is not needed any more


def test_functions_are_short():
    """Signature and docstring included."""
    long = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MOST_LINES:
                long.append(f"{path}: {node.name} has {lines} lines")
    assert long == []


def test_no_folder_has_the_name_of_a_public_function():
    names = {path.stem for path in ROOT.iterdir() if path.name != "__init__.py"}
    assert names & set(unweave.__all__) == set()


def test_modules_are_reached_by_their_path():
    import unweave.decomposition.rules as r
    import unweave.evaluation.api as api

    assert r.attention_relevant is not None
    assert unweave.decompose is importlib.import_module("unweave.decomposition.api").decompose
    assert unweave.evaluate is api.evaluate


def mentioned(hint: object) -> Iterator[type]:
    """Our own classes in an annotation."""
    for part in typing.get_args(hint):
        yield from mentioned(part)
    if inspect.isclass(hint) and hint.__module__.startswith("unweave."):
        yield hint


# Values that a caller passes on and never writes down: prompts as `Model.inputs` makes them, a
# named activation as `Site.point` gives it, a model's weights.
HANDED_ON = {"Inputs", "Point", "Network"}
FUNCTIONS = [name for name in unweave.__all__ if inspect.isfunction(getattr(unweave, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_public_function_takes_and_returns_is_public(name):
    hints = typing.get_type_hints(getattr(unweave, name))
    needed = {one.__name__ for hint in hints.values() for one in mentioned(hint)}
    assert sorted(needed - set(unweave.__all__) - HANDED_ON) == []


RECORDS = [name for name in unweave.__all__ if dataclasses.is_dataclass(getattr(unweave, name))]


@pytest.mark.parametrize("name", RECORDS)
def test_the_fields_of_a_public_record_are_public(name):
    hints = typing.get_type_hints(getattr(unweave, name))
    needed = {one.__name__ for hint in hints.values() for one in mentioned(hint)}
    assert sorted(needed - set(unweave.__all__) - HANDED_ON) == []
