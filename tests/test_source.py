"""What the source itself has to be: names with one meaning, short functions, a complete surface."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import typing
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import unweave

ROOT = Path(unweave.__file__).parent
MOST_LINES = 60
# Class names that two modules define, each with its reason.
TWICE = {"_Run": "each search keeps what its steps share in one"}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def test_no_class_name_is_defined_twice():
    """Neither as two classes, nor as a class and as an alias of something else."""
    homes = defaultdict(list)
    classes = set[str]()
    for path, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes.add(node.name)
                homes[node.name].append(str(path))
            elif path.parts[0] != "cli":  # an option's annotation has the name of what it gives
                for name in assigned(node):
                    homes[name].append(str(path))
    twice = {name: homes[name] for name in classes if len(homes[name]) > 1}
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


# What is public without a name of its own: a model's weights, which a caller passes on, and the
# keywords of `Task.batch`, which are those of `Task.prompts`.
UNNAMED = {"Network", "Choice"}
LATER = {
    "Figure": object,
    "DataFrame": object,
}  # of plotly and pandas, imported where they are used
FUNCTIONS = [name for name in unweave.__all__ if inspect.isfunction(getattr(unweave, name))]
CLASSES = [name for name in unweave.__all__ if inspect.isclass(getattr(unweave, name))]


def not_public(of: object) -> list[str]:
    """Our own classes in the annotations of a function or class that are not public."""
    hints = typing.get_type_hints(of, localns=LATER)
    hints = {name: hint for name, hint in hints.items() if not name.startswith("_")}
    needed = {one.__name__ for hint in hints.values() for one in mentioned(hint)}
    return sorted(needed - set(unweave.__all__) - UNNAMED)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_public_function_takes_and_returns_is_public(name):
    assert not_public(getattr(unweave, name)) == []


def methods(of: type) -> Iterator[object]:
    for name, member in inspect.getmembers(of):
        member = getattr(member, "fget", None) or getattr(member, "func", member)
        ours = str(getattr(member, "__module__", "")).startswith("unweave")
        if ours and not name.startswith("_") and inspect.isroutine(member):
            yield member


@pytest.mark.parametrize("name", CLASSES)
def test_the_fields_and_methods_of_a_public_class_are_public(name):
    found = getattr(unweave, name)
    assert {one: not_public(one) for one in (found, *methods(found)) if not_public(one)} == {}


def test_methods_are_looked_at():
    found = {getattr(one, "__qualname__", "") for one in methods(unweave.Problem)}
    assert {"Problem.metric", "Problem.points", "Runs.faithfulness"} <= found


def test_every_benchmark_imports_what_there_is():
    """A script that nothing runs may ask for names that are gone. In a process of their own, since
    one adds rules to the registry."""
    folder = Path(__file__).parents[1] / "benchmarks"
    scripts = sorted(map(str, folder.glob("*.py")))
    assert len(scripts) > 15
    code = "import runpy, sys; [runpy.run_path(path) for path in sys.argv[1:]]"
    run = [sys.executable, "-c", code, *scripts]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
