"""Several processes on one job, as torchrun starts them: shares of the work, and what is shared.

Every process loads the model, runs the same program and takes the same decisions. At a few seams
the work is a table (sources × prompts of a sweep, circuits × prompts of a search), and each process
does its share of the cells: the others are 0 there, so one sum over all processes is the whole
table, the same bytes everywhere. Nothing but scores travels. The first process alone reads and
writes files, and tells the others what it read.
"""

import json
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from unweave.errors import UnweaveError
from unweave.scoped import scoped

# How long one process waits for another: the first may write a report, or load a slow disk.
_PATIENCE = timedelta(minutes=30)
_GO_ON = "what is finished is kept: give the same command again, discover with --resume"


@dataclass(frozen=True)
class Ranks:
    """This process among those of a run.

    Args:
        rank: Its number, from 0.
        count: How many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process reads, writes and prints."""
        return self.rank == 0

    def share(self, rows: int, columns: int) -> tuple[slice, slice] | None:
        """The rows and columns of a table that are this process's; None where it has none.

        Rows are dealt out in turn, since neighbours cost alike (nodes of one layer); columns are
        cut into even spans. Of all ways to cut, the one whose largest share is smallest; of equal
        ones that with more cuts between columns, which repeat nothing.
        """

        def largest(cut: int) -> tuple[int, int]:
            return -(-rows // cut) * -(-columns // (self.count // cut)), cut

        down = min(range(1, self.count + 1), key=largest)
        across = min(self.count // down, columns)
        i, j = divmod(self.rank, across)
        if i >= min(down, rows):
            return None
        return slice(i, rows, down), slice(columns * j // across, columns * (j + 1) // across)


_ALONE = Ranks()
_ranks: ContextVar[Ranks] = ContextVar("unweave_ranks", default=_ALONE)
# What was shared last. gloo's threads let go of a tensor a moment after its sum is there. The last
# to hold it needs Python's lock, which `destroy_process_group` keeps while it waits for these
# threads: without these references a process hung there forever.
_HELD = 16
_shared: ContextVar[deque[Tensor]] = ContextVar("unweave_shared")


def ranks() -> Ranks:
    """This process among those of a run; the only one unless the run was joined."""
    return _ranks.get()


def launched() -> bool:
    """Whether torchrun started this process, and others with it."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarted() -> bool:
    """Whether torchrun started the run again after a process died (`--max-restarts`)."""
    return launched() and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


@contextmanager
def joined() -> Iterator[Ranks]:
    """Within this block, the processes that torchrun started work together.

    "cuda" is then each process's own GPU. An error that all processes meet is raised in one of
    them; the others exit.

    Raises:
        UnweaveError: When the processes cannot find each other, or one of them ends early.
    """
    if not launched():
        yield _ALONE
        return
    _connect()
    signal.signal(signal.SIGTERM, _ended)
    held: deque[Tensor] = deque(maxlen=_HELD)  # until the processes have left each other
    own, afterwards = Ranks(dist.get_rank(), dist.get_world_size()), signal.SIG_DFL
    with scoped(_ranks, own), scoped(_shared, held):
        try:
            yield own
        except UnweaveError as error:
            # torchrun ends the others once one has died: not before this one has said why.
            afterwards = signal.SIG_IGN
            signal.signal(signal.SIGTERM, afterwards)
            if _already_warned(str(error)):
                raise SystemExit(2) from error
            raise
        finally:
            signal.signal(signal.SIGTERM, afterwards)
    dist.destroy_process_group()


@contextmanager
def alone() -> Iterator[None]:
    """Within this block nothing is shared: this process does all that it is asked for."""
    with scoped(_ranks, _ALONE):
        yield


def sharded(
    rows: int,
    columns: int,
    run: Callable[[slice, slice], Float[Tensor, "row column"]],
    like: Tensor,
    names: Iterable[str],
) -> Float[Tensor, "row column"]:
    """A table of which each process computes a share.

    Args:
        run: Computes the values at some rows and columns.
        like: The table's precision and device.
        names: What the table is about, in order: the same in every process.

    Raises:
        UnweaveError: When the processes disagree on it, or one of them ended.
    """
    mine = ranks()
    if mine.count == 1:
        return run(slice(None), slice(None))
    agree(names)
    table = torch.zeros(rows, columns, dtype=like.dtype, device=like.device)
    if (share := mine.share(rows, columns)) is not None:
        with alone():
            table[share] = run(*share)
    return summed(table)


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, the same bytes in each of them."""
    return values if ranks().count == 1 else _together(dist.all_reduce, values)


def from_first(values: Tensor) -> Tensor:
    """The first process's values: those of the others may be rounded differently."""
    return values if ranks().count == 1 else _together(lambda x: dist.broadcast(x, 0), values)


def agree(names: Iterable[str]) -> None:
    """Checks that every process is about to work on the same.

    Raises:
        UnweaveError: When one is not: sums of different tables would be wrong in silence.
    """
    mine = ranks()
    if mine.count == 1:
        return
    digest = blake2b("\n".join(names).encode(), digest_size=7).digest()
    seen = torch.zeros(mine.count, dtype=torch.int64)
    seen[mine.rank] = int.from_bytes(digest, "big")
    if len(summed(seen).unique()) > 1:
        raise UnweaveError(
            "the processes of this run disagree on what comes next: start all of them with one "
            "version of unweave and torch, on machines of one kind"
        )


def on_first(call: Callable[[], Any]) -> Any:
    """What a call returns in the first process, which alone makes it; as JSON in the others.

    Raises:
        UnweaveError: In every process, when the call does.
    """
    if ranks().count == 1:
        return call()
    found = bytes_of_first(lambda: json.dumps(call()).encode())
    return None if found is None else json.loads(found)


def bytes_of_first(call: Callable[[], bytes | None]) -> bytes | None:
    """The bytes that a call returns in the first process, which alone makes it.

    Raises:
        UnweaveError: In every process, when the call does.
    """
    message = b""
    if ranks().first:
        with alone():
            message = _outcome(call)
    if ranks().count > 1:
        message = _broadcast(message)
    kind, found = message[:1], message[1:]
    if kind == b"e":
        raise UnweaveError(found.decode())
    return None if kind == b"n" else found


def _outcome(call: Callable[[], bytes | None]) -> bytes:
    try:
        found = call()
    except UnweaveError as error:
        return b"e" + str(error).encode()
    return b"n" if found is None else b"b" + found


def _broadcast(data: bytes) -> bytes:
    size = from_first(torch.tensor([len(data)]))
    held = torch.zeros(int(size), dtype=torch.uint8)
    if ranks().first:
        held[:] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return from_first(held).numpy().tobytes()


def _connect() -> None:
    """NCCL between GPUs, one for each process of a machine; gloo for everything else."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    own = torch.cuda.is_available() and (
        int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
    )
    if own:
        torch.cuda.set_device(local)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if own else "gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise UnweaveError(
            f"process {os.environ.get('RANK')} of {os.environ.get('WORLD_SIZE')} cannot reach the "
            f"others ({_line(error)}): check torchrun's --nnodes and --rdzv-endpoint"
        ) from error


def _together(call: Callable[[Tensor], object], values: Tensor) -> Tensor:
    # gloo writes into the memory of a tensor as if it were contiguous: an expanded one has less.
    values = values.detach().clone(memory_format=torch.contiguous_format)
    if (held := _shared.get(None)) is not None:
        held.append(values)
    try:
        call(values)
    except RuntimeError as error:  # gloo's and NCCL's
        raise UnweaveError(
            f"another process of this run ended, or cannot be reached ({_line(error)}); {_GO_ON}"
        ) from error
    return values


def _ended(number: int, frame: object) -> NoReturn:
    """torchrun ends all processes when one of them dies."""
    raise UnweaveError(f"this run was ended because another process of it died; {_GO_ON}")


def _already_warned(message: str) -> bool:
    """Whether another process prints the same error."""
    key = blake2b(message.partition("(")[0].encode(), digest_size=8).hexdigest()
    try:
        return dist.distributed_c10d._get_default_store().add(f"unweave {key}", 1) > 1
    except RuntimeError:  # the store went with its process
        return False


def _line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:120] if text else type(error).__name__
