"""Prints the lowest version of each run-time dependency, as constraints for pip."""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(requirement: str) -> str:
    """`torch>=2.4` as `torch==2.4`.

    Raises:
        ValueError: For a requirement without a lower bound.
    """
    match = re.match(r"([\w.-]+)(?:\[.*\])?\s*>=\s*([\w.]+)", requirement)
    if match is None:
        raise ValueError(f"{requirement!r} has no lower bound: write name>=version")
    return f"{match[1]}=={match[2]}"


if __name__ == "__main__":
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    print(*map(lowest, project["dependencies"]), sep="\n")
