"""Where to compute: a device that the caller names and this machine has, else the host."""

from __future__ import annotations

import torch

from ..errors import DataError, first_line


def usable(device: str | torch.device) -> torch.device:
    """The device, or an error that says which names there are, or why it cannot be used.

    >>> usable("cpu")
    device(type='cpu')
    """
    try:
        if not isinstance(device, str | torch.device):
            raise TypeError
        found = torch.device(device)
    except (TypeError, RuntimeError) as error:
        raise DataError(f"device must be cpu, cuda, cuda:1 or mps; found {device!r}") from error
    try:
        torch.empty(1, device=found)
    except Exception as error:
        raise DataError(
            f"device {str(found)!r} cannot be used here ({first_line(error)}); use cpu, or a build "
            "of torch and a machine that have it"
        ) from error
    return found


def refuse_other_default() -> None:
    """An error where the caller has torch make tensors elsewhere than on the host."""
    device = torch.get_default_device()
    if device.type != "cpu":
        raise DataError(
            f"torch's default device is {str(device)!r}, and what is kept of a network is made on "
            'the host; call this inside `with torch.device("cpu"):` (networks and data may stay '
            "where they are)"
        )
