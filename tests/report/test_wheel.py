"""What is installed holds the page's files."""

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


def test_wheel_holds_the_page() -> None:
    files = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    page = {path.name for path in (ROOT / "src/unweave/report/page").iterdir()}
    assert {"style.css", "report.html.j2", "main.js"} <= page
    assert {f"unweave/report/page/{name}" for name in page} <= files
