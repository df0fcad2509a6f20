"""What the demo leaves for its reader: the commands that made it, and the file that they load."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from .._atomic_files import check_writable, write_atomically
from ..errors import DataError
from ..gate.verdict import Verdict
from .digit_networks import TRAINED_ON, DigitNet, Network

_NETWORKS = '''\
"""The networks of the demo, and the images that none of them saw in training."""

from sklearn.datasets import load_digits
from torch import Tensor, nn, tensor


{network}

def ten_digits() -> DigitNet:
    return DigitNet(10)


def odd_even() -> DigitNet:
    return DigitNet(2)


def unseen() -> Tensor:
    return tensor(load_digits().images[{seen}:]).float()[:, None] / 16
'''


def make(out: Path) -> None:
    """Make the folder, or refuse one in which the demo could not be left."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the folder {out}: {error.strerror}; name another") from error
    for name in ("README.md", "networks.py", "report.html"):
        check_writable(out / name)


def write(
    out: Path, nets: Sequence[Network], findings: Sequence[str], check: str, verdict: Verdict
) -> None:
    """Write README.md, the demo in words and commands, and networks.py, which builds its models.

    `check` is the command whose verdict closes the demo.
    """
    networks = _NETWORKS.format(network=inspect.getsource(DigitNet), seen=TRAINED_ON)
    write_atomically(out / "networks.py", networks.encode())
    template = resources.files(__package__).joinpath("README.template.md")
    readme = template.read_text(encoding="utf-8").format(
        findings="\n".join(f"- {sentence}" for sentence in findings),
        table="\n".join(f"| {n.name} | {n.story} | {n.accuracy:.1%} |" for n in nets),
        commands="\n".join(map(_command, nets)),
        files=" ".join(f"{net.name}.rsm" for net in nets),
        check=check,
        verdict=verdict.paragraph(),
        status=verdict.exit_status,
    )
    write_atomically(out / "README.md", readme.encode())


def _command(net: Network) -> str:
    """How a network is recorded from its weights."""
    build = "odd_even" if net.model.head.out_features == 2 else "ten_digits"
    return (
        f"resemblance record --model networks.py:{build} --weights {net.name}.safetensors "
        f"--data networks.py:unseen --data-id 'unseen digits' -o {net.name}.rsm"
    )
