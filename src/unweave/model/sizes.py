"""Sizes of memory: as a user writes them, and what a device has free."""

import math
import os
import re

import torch

from unweave.errors import UnweaveError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FALLBACK = 4 * 10**9


def memory_size(memory: str | int) -> int:
    """Bytes from "4GB" or a number.

    Raises:
        UnweaveError: For text that is not a size, or a size that is not positive.
    """
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*([KMGT]?)i?B?\s*", str(memory), re.IGNORECASE)
    size = float(match[1]) * _UNITS[match[2].upper()] if match else 0
    if not 1 <= size < math.inf:
        raise UnweaveError(f"memory {memory!r} is not a size: expected e.g. '4GB' or '500MB'")
    return int(size)


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        pages = os.sysconf("SC_AVPHYS_PAGES")
        if os.path.exists("/proc/meminfo"):
            # Linux counts the page cache as used; what is available includes it.
            with open("/proc/meminfo") as file:
                fields = dict(line.split(":", 1) for line in file)
            if "MemAvailable" in fields:
                return int(fields["MemAvailable"].split()[0]) * 1024
        return pages * os.sysconf("SC_PAGE_SIZE")
    return _FALLBACK
