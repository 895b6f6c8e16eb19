"""What the site needs beyond Markdown: formulas without scripts, lists made from the source."""

import ast
import html
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "unweave"
# pymdownx.arithmatex marks formulas like this.
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
# Bars of |x| and ‖x‖ come as operators, with space around; a prime as a raised letter, too high.
_BAR = re.compile(r"<mo>(&#x0007C;|&#x02016;)</mo>")
_PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>")
_AREAS = {
    "model": "Loading a model",
    "behaviours": "Tasks and prompts",
    "decomposition": "Decomposition",
    "attribution": "Words of a text",
    "scores": "Scores",
    "search": "Search",
    "evaluation": "Evaluation",
    "experiments": "Runs and comparisons",
    "report": "Reports, plots and exports",
    "cli": "Command line",
}


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw themselves."""

    def math(match: re.Match[str]) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        found = convert(html.unescape(match["latex"]).strip(), display=display)
        found = _BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', found)
        found = _PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">&#x02032;</mo></mrow>', found)
        # A formula that is wider than a phone scrolls by itself, as code does.
        return f'<div style="overflow-x: auto">{found}</div>' if display == "block" else found

    return _FORMULA.sub(math, content)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts a list where a page asks for it."""
    lists = {
        "<!-- all errors -->": error_list,
        "<!-- public names -->": names_list,
        "<!-- gallery -->": gallery_list,
    }
    for place, make in lists.items():
        if place in markdown:
            markdown = markdown.replace(place, make())
    return markdown


def public_names() -> list[str]:
    """`unweave.__all__`, read without importing it."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    raise ValueError(f"{PACKAGE / '__init__.py'} has no __all__")


def names_list() -> str:
    """Every public name with its docstring, functions first."""
    names = public_names()
    groups = {
        "Functions": [name for name in names if name.islower()],
        "Classes": [name for name in names if not name.islower() and not name.isupper()],
        "Metrics": [name for name in names if name.isupper()],
    }
    return "\n\n".join(
        f"## {title}\n\n" + "\n\n".join(f"::: unweave.{name}" for name in found)
        for title, found in groups.items()
        if found
    )


def gallery_list() -> str:
    """Every circuit of docs/gallery.json, with its report where docs/gallery.py has made one."""
    docs, parts = ROOT / "docs", []
    for name, one in json.loads((docs / "gallery.json").read_text(encoding="utf-8")).items():
        low, high = one["interval"]
        found = (
            f"{one['size']} of {one['total']} nodes, faithfulness {one['faithfulness']:.3f} "
            f"({low:.3f} to {high:.3f} on {one['prompts']} held-out prompts): "
            f"{', '.join(f'`{node}`' for node in one['nodes'])}."
        )
        built = (docs / "gallery" / f"{name}.html").exists()
        link = (
            f" [Open the report](gallery/{name}.html)."
            if built
            else f" `python docs/gallery.py {name}` makes its report."
        )
        picture = f"![The circuit of {name}](pictures/gallery-{name}.svg){{ width=600 }}"
        lines = (f"## {name}", one["about"], picture, found + link, f"`{one['command']}`")
        parts.append("\n\n".join(lines))
    return "\n\n".join(parts)


def error_list() -> str:
    """Every message that a user can meet, by the part of the package it is from."""
    lines: dict[str, list[str]] = {area: [] for area in (*_AREAS.values(), "Other")}
    for path in sorted(PACKAGE.rglob("*.py")):
        area = path.relative_to(PACKAGE).parts[0]
        if area == "testing":
            continue
        found = dict.fromkeys(messages(path.read_text(encoding="utf-8")))  # some stand twice
        lines[_AREAS.get(area, "Other")] += [f"- `{message}`" for message in found]
    return "\n\n".join(
        f"### {area}\n\n" + "\n".join(found) for area, found in lines.items() if found
    )


@cache
def message_places() -> dict[str, tuple[int, str]]:
    """By what is called with a message: which of its arguments it is, and what stands before it."""
    errors = ["UnweaveError"]
    for node in ast.parse((PACKAGE / "errors.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and any(
            isinstance(base, ast.Name) and base.id in errors for base in node.bases
        ):
            errors.append(node.name)
    places = dict.fromkeys(errors, (0, ""))
    # A bad line of a task file, and a value of a run's file that does not fit.
    return places | {"BadLine": (1, ""), "_fail": (2, "‹where› is ‹value›, expected ")}


def messages(source: str) -> Iterator[str]:
    """The messages of errors in a module; what is filled in stands as its name in ‹›."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for scope in [tree, *functions]:
        for node in _own(scope):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if not isinstance(node, ast.Call) or name not in message_places():
                continue
            place, before = message_places()[name]
            for text in _texts(node.args[place], scope) if len(node.args) > place else ():
                if re.search(r"\w{2}|=", re.sub(r"‹.*?›", "", before + text)):
                    yield (before + text).replace("`", "'").strip()


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module that are not in a function within it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _own(child)


def _texts(node: ast.expr, scope: ast.AST) -> Iterator[str]:
    """The texts of an expression; all where it depends on a condition, a name or a function."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body, scope)
        yield from _texts(node.orelse, scope)
    elif isinstance(node, ast.Name):
        for one in _own(scope):
            if isinstance(one, (ast.Assign, ast.NamedExpr)):
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                if node.id in map(_name, targets):
                    yield from _texts(one.value, scope)
    elif isinstance(node, ast.Call):
        for function in _functions().get(_name(node.func), ()):
            for one in _own(function):
                if isinstance(one, ast.Return) and one.value is not None:
                    yield from _texts(one.value, function)
    elif not (isinstance(node, ast.Constant) and node.value is None):
        yield "".join(_pieces(node))


def _name(node: ast.expr) -> str:
    return getattr(node, "id", "")


@cache
def _functions() -> dict[str, list[ast.FunctionDef]]:
    """The functions of the package that say themselves to return a text."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.FunctionDef)
                and node.returns is not None
                and ast.unparse(node.returns) in ("str", "str | None")
            ):
                found.setdefault(node.name, []).append(node)
    return found


# What is called on a value or read off it, and says nothing about it.
_NOT_NAMES = {
    *("self", "str", "list", "repr", "sorted", "min", "max", "round", "type", "map", "filter"),
    *("join", "get", "lstrip", "decode", "__name__", "get_args", "short", "_short"),
}
_COUNTS = {"len", "sum", "int", "bit_length"}


def _told(value: ast.expr) -> str:
    """What a value is called: the key that it is read by, or the name that says most."""
    if isinstance(value, ast.Call):
        called = getattr(value.func, "attr", "") or _name(value.func)
        if called in _COUNTS:
            return "number"
        if called == "get" and isinstance(value.args[0], ast.Constant):
            return str(value.args[0].value)
    found = list(ast.walk(value))
    attributes = [n.attr for n in found if isinstance(n, ast.Attribute)]
    names = [n.id for n in found if isinstance(n, ast.Name)]
    return next((name for name in (*attributes, *names) if name not in _NOT_NAMES), "…")


def _pieces(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _pieces(value)
    elif isinstance(node, ast.FormattedValue):
        yield f"‹{_told(node.value)}›"
    elif isinstance(node, ast.BinOp):
        yield from _pieces(node.left)
        yield from _pieces(node.right)
