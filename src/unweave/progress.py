"""A progress bar on standard error for anything that takes more than two seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_shown: ContextVar[bool] = ContextVar("unweave_progress_shown", default=True)
_DELAY = 2.0


@contextmanager
def silent() -> Iterator[None]:
    """No progress bars within this block (`-q`, `--json`)."""
    token = _shown.set(False)
    try:
        yield
    finally:
        _shown.reset(token)


@contextmanager
def progress(label: str, total: int | float) -> Iterator[Callable[[int | float], None]]:
    """Yields `advance(amount)`; the bar appears only once two seconds have passed.

    On a terminal it is a live bar; elsewhere nothing is printed, so logs stay clean. Within
    another bar's block there is only the outer one.
    """
    if not _shown.get():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    began, started = time.monotonic(), False
    task = bar.add_task(label, total=total)

    def advance(amount: int | float) -> None:
        nonlocal started
        bar.advance(task, amount)
        due = time.monotonic() - began > _DELAY
        if due and not started and console.is_terminal:
            started = True
            bar.start()

    try:
        with silent():
            yield advance
    finally:
        if started:
            bar.stop()
