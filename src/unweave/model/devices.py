"""Devices as a user names them."""

import torch

from unweave.errors import UnweaveError


def device_of(name: torch.device | str) -> torch.device:
    """A device that tensors can be moved to, as a tensor there names it ("cuda" is "cuda:0").

    Raises:
        UnweaveError: For a name that torch does not know, a device that this machine does not have
            (torch says so only when a tensor is moved), or one that holds no numbers.
    """
    try:
        device = torch.zeros(1).to(torch.device(name)).device
    # torch raises ImportError for kinds of devices that other packages bring (hpu).
    except (RuntimeError, AssertionError, ImportError) as error:
        raise unusable(name, error) from error
    if device.type == "meta":
        raise unusable(name, "it holds no numbers")
    return device


def unusable(device: torch.device | str, why: object) -> UnweaveError:
    """The error for a device that cannot be used; torch's reasons have many lines."""
    reason = (str(why).splitlines() or [type(why).__name__])[0]
    return UnweaveError(f"device {device!s} cannot be used ({reason}): try cpu")
