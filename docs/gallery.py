"""Makes the gallery: runs each circuit, and keeps its picture, its figures and its report.

    python docs/gallery.py                      # every entry; minutes on a CPU
    python docs/gallery.py wired-induction      # those that are named

Pictures (docs/pictures/gallery-*.svg) and figures (docs/gallery.json) are small and stored. A
report is 5 MB, most of it plotly.js: docs/gallery/*.html is made where the site is built, and not
stored. A run that is there (runs/gallery/NAME) is not run again.
"""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

from unweave import cli

DOCS = Path(__file__).parent
RUNS = DOCS.parent / "runs" / "gallery"
# What `unweave discover` is given for each entry, and one line about it.
ENTRIES = {
    "ioi": (
        ["ioi"],
        "Indirect object identification in SmolLM2-135M: the run of `make demo`.",
    ),
    "greater-than": (
        ["greater-than"],
        "Greater-than in SmolLM2-135M: what began in 1419 lasted to a year after 1419.",
    ),
    "wired-induction": (
        ["wired-induction"],
        "Induction, wired by hand: a previous-token head feeds the key of an induction head.",
    ),
    "wired-inhibition": (
        ["wired-inhibition"],
        "A small indirect-object circuit, wired by hand: duplicate token, inhibition, mover.",
    ),
    "wired-relay": (
        ["wired-relay"],
        "Three heads in a row, wired by hand: each hands on what the one before wrote.",
    ),
    "wired-suppression": (
        ["wired-suppression"],
        "Induction with a head against it, wired by hand: negative nodes belong to the circuit.",
    ),
}


def main(names: list[str]) -> None:
    """Makes the entries that are named, and lists all that are known."""
    path = DOCS / "gallery.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    (DOCS / "gallery").mkdir(exist_ok=True)
    for name in names or ENTRIES:
        command, about = ENTRIES[name]
        folder = RUNS / name
        if not (folder / "report.html").exists():
            code = cli.main(["discover", *command, "--out", str(folder)])
            if code:
                raise SystemExit(code)
        run, circuit = (
            json.loads((folder / file).read_text(encoding="utf-8"))
            for file in ("run.json", "circuit.json")
        )
        picture = _pictures().circuit_svg(run, circuit)
        (DOCS / "pictures" / f"gallery-{name}.svg").write_text(picture, encoding="utf-8")
        shutil.copyfile(folder / "report.html", DOCS / "gallery" / f"{name}.html")
        kept = ("task", "model", "method", "size", "total", "faithfulness", "interval", "prompts")
        known[name] = {
            "about": about,
            "command": f"unweave discover {' '.join(command)}",
            "nodes": [node["site"] for node in circuit["nodes"]],
            **{key: circuit[key] for key in kept},
        }
    ordered = {name: known[name] for name in ENTRIES if name in known}
    path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def _pictures():
    """docs/pictures.py, which is not in a package."""
    spec = importlib.util.spec_from_file_location("docs_pictures", DOCS / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1:])
