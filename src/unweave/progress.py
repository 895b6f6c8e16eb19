"""A progress bar on standard error for anything that takes more than two seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from typing import Any

from unweave.scoped import scoped

_shown: ContextVar[bool] = ContextVar("unweave_progress_shown", default=True)
_DELAY = 2.0


@contextmanager
def silent() -> Iterator[None]:
    """No progress bars within this block (`-q`, `--json`)."""
    with scoped(_shown, False):
        yield


@contextmanager
def progress(label: str, total: int | float) -> Iterator[Callable[[int | float], None]]:
    """Yields `advance(amount)`; the bar appears only once two seconds have passed.

    On a terminal it is a live bar, in a notebook a bar below the cell that goes away at the end;
    elsewhere nothing is printed, so logs stay clean. Within another bar's block there is only the
    outer one.
    """
    if not _shown.get():
        yield lambda amount: None
        return
    from rich.console import Console

    console, began = Console(stderr=True), time.monotonic()
    able = console.is_terminal or console.is_jupyter
    bar: _TerminalBar | _NotebookBar | None = None
    done: int | float = 0

    def advance(amount: int | float) -> None:
        nonlocal bar, done
        done += amount
        if bar is None and able and time.monotonic() - began > _DELAY:
            notebook = console.is_jupyter
            bar = _NotebookBar(label) if notebook else _TerminalBar(label, console)
        if bar is not None:
            bar.show(done, total)

    try:
        with silent():
            yield advance
    finally:
        if bar is not None:
            bar.close()


class _TerminalBar:
    """A live bar by rich."""

    def __init__(self, label: str, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task(label, total=None)
        self._bar.start()

    def show(self, done: int | float, total: int | float) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        self._bar.stop()


class _NotebookBar:
    """A bar of HTML that is drawn anew, at most ten times a second: no widgets are needed."""

    def __init__(self, label: str) -> None:
        from IPython.display import HTML, display

        self._label, self._html, self._last = label, HTML, 0.0
        self._handle: Any = display(HTML(""), display_id=True)

    def show(self, done: int | float, total: int | float) -> None:
        now = time.monotonic()
        if now - self._last < 0.1 and done < total:
            return
        self._last, share = now, min(1.0, done / total) if total else 1.0
        label = f"{escape(self._label)}: {share:.0%}"
        bar = f'<progress value="{share:.3f}" max="1" aria-label="{label}"></progress>'
        self._handle.update(self._html(f"{label} {bar}"))

    def close(self) -> None:
        self._handle.update(self._html(""))
