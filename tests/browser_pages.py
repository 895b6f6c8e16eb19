"""Pages in a real browser: Debian's chromium, driven by playwright."""

import shutil
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: apt-get install chromium (as .ci/run does as root)"
)


def open_page(
    browser: Any, path: Path, width: int = 1280, scheme: str = "light", view: str = ""
) -> Any:
    """A page that was opened from disk without an error, a request or a dialog.

    Args:
        view: The fragment of its address.
    """
    context = browser.new_context(
        viewport={"width": width, "height": 860}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    page.problems = []
    page.on("console", lambda m: m.type in ("error", "warning") and page.problems.append(m.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("dialog", lambda dialog: page.problems.append("dialog"))
    page.on("request", lambda r: r.url.startswith("http") and page.problems.append(r.url))
    page.goto(path.resolve().as_uri() + view)
    page.wait_for_selector("html[data-ready]", state="attached", timeout=30_000)
    return page
