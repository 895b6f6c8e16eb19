"""A browser for the tests of pages."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from browser_pages import CHROMIUM


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox cannot start for root, as whom CI containers run.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield made
        made.close()
