"""Jobs on other processes and machines: `local:4`, `slurm`, `ray`, or any executor of your own.

An executor has `submit(call, *args)` and gives objects with `done()` and `result()`, as those of
concurrent.futures, submitit and (through `RayExecutor`) Ray do. A job whose worker dies is
submitted again; jobs share nothing but the files that they write.
"""

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, Protocol, runtime_checkable

from unweave.errors import UnweaveError

JobCall = tuple[Callable[..., Any], tuple[Any, ...]]

TRIES = 3  # how often a job is submitted whose worker dies
_POLL = 0.1  # seconds between two looks at what is done
_KINDS = "local:4, slurm, slurm:partition=gpu,timeout_min=60, ray or ray:ADDRESS"


@runtime_checkable
class Submitted(Protocol):
    """A job that was submitted."""

    def done(self) -> bool: ...

    def result(self) -> Any: ...


@runtime_checkable
class Submits(Protocol):
    """Whatever runs jobs."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any: ...


def outcomes(
    executor: Submits,
    calls: Mapping[str, JobCall],
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[tuple[str, Any]]:
    """Runs calls, and yields what each returned, or an `UnweaveError`, as they finish.

    Args:
        calls: By name.
        say: Told about every worker that died.

    Raises:
        UnweaveError: When the executor itself does not take jobs any more.
    """

    def submit(key: str) -> Submitted:
        call, args = calls[key]
        try:
            return executor.submit(call, *args)
        except (BrokenExecutor, RuntimeError) as error:
            raise UnweaveError(
                f"the executor takes no more jobs ({error}): what is finished is kept, and the "
                "same command continues"
            ) from error

    waiting, tries = {key: submit(key) for key in calls}, Counter(list(calls))
    while waiting:
        for key in [key for key, job in waiting.items() if job.done()]:
            try:
                found = waiting[key].result()
            except UnweaveError as error:
                found = error
            # Executors have no common class for a worker that died.
            except (Exception, CancelledError) as error:
                if tries[key] < TRIES:
                    tries[key] += 1
                    say(f"{key}: its worker ended ({_line(error)}); once more")
                    waiting[key] = submit(key)
                    continue
                found = UnweaveError(
                    f"its worker ended {TRIES} times ({_line(error)}): give it more memory or "
                    "time, and run the same command again"
                )
            del waiting[key]
            yield key, found
        time.sleep(_POLL if waiting else 0)


@contextmanager
def find_executor(text: str, folder: Path) -> Iterator[Submits]:
    """An executor by name: `local:4`, `slurm`, `slurm:key=value,…`, `ray`, `ray:ADDRESS`.

    Args:
        folder: For what submitit writes about its jobs.

    Raises:
        UnweaveError: For another name, or when the package that it needs is not installed.
    """
    kind, _, rest = text.partition(":")
    if kind == "local" and rest.isdecimal() and int(rest):
        with LocalProcesses(int(rest)) as pool:
            yield pool
    elif kind == "slurm":
        yield _slurm(rest, folder)
    elif kind == "ray":
        with _ray(rest) as pool:
            yield pool
    else:
        raise UnweaveError(f"--executor {text}: expected {_KINDS}")


class LocalProcesses(Executor):
    """Processes of this machine, each in a pool of its own: one that dies takes no other along."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count)
        self._each = max(1, (os.cpu_count() or 1) // count)
        self._free: Queue[ProcessPoolExecutor] = Queue()
        for _ in range(count):
            self._free.put(self._pool())

    def _pool(self) -> ProcessPoolExecutor:
        # A fork of a process that has used torch's threads may hang.
        fresh = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, fresh, _set_threads, (self._each,))

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return self._threads.submit(self._run, fn, args, kwargs)

    def _run(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        pool = self._free.get()
        try:
            return pool.submit(call, *args, **kwargs).result()
        except BrokenExecutor:
            pool.shutdown(wait=False)
            pool = self._pool()
            raise
        finally:
            self._free.put(pool)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        while not self._free.empty():
            self._free.get().shutdown(wait, cancel_futures=cancel_futures)

    def __exit__(self, kind: object, *rest: object) -> None:
        self.shutdown(wait=kind is None, cancel_futures=True)


def _set_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def _slurm(text: str, folder: Path) -> Submits:
    """submitit's executor; `cluster=local` runs its jobs on this machine."""
    try:
        import submitit  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UnweaveError("--executor slurm needs submitit: install 'unweave[slurm]'") from error
    given: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise UnweaveError(f"--executor slurm: {part!r} is not name=value; expected {_KINDS}")
        given[name] = int(value) if value.isdecimal() else value
    found = submitit.AutoExecutor(folder / "jobs", cluster=given.pop("cluster", "slurm"))
    known = {
        "partition",
        "gres",
        "qos",
        "account",
        "constraint",
        "mem_per_gpu",
        "array_parallelism",
    }
    named = {f"slurm_{name}" if name in known else name: value for name, value in given.items()}
    try:
        found.update_parameters(**named)
    except (NameError, ValueError, TypeError, AssertionError) as error:
        raise UnweaveError(
            f"--executor slurm: submitit does not take this ({_line(error)})"
        ) from error
    return found


@contextmanager
def _ray(address: str) -> Iterator["RayExecutor"]:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UnweaveError("--executor ray needs Ray: install 'unweave[ray]'") from error
    try:
        ray.init(address=address or None, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UnweaveError(
            f"no Ray cluster at {address or 'this machine'} ({_line(error)}): start one with "
            "ray start --head, or give its address with ray:ADDRESS"
        ) from error
    try:
        yield RayExecutor(ray)
    finally:
        ray.shutdown()


class RayExecutor:
    """Ray's tasks as an executor; `outcomes` decides what is done again, not Ray."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "RayJob":
        task = self._ray.remote(fn).options(max_retries=0)
        return RayJob(self._ray, task.remote(*args, **kwargs))


class RayJob:
    """A task of Ray that was submitted."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def done(self) -> bool:
        return bool(self._ray.wait([self._reference], timeout=0)[0])

    def result(self) -> Any:
        return self._ray.get(self._reference)


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:120] if text else type(error).__name__
