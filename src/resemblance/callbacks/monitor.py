"""`Monitor`: record a probe during training and report how far each layer has changed.

A probe is a small set of samples that never changes. Each recording of it is a file in a folder,
and is compared layer by layer with the first recording, with the one before and with a base. The
values are a flat dict for any logger. The monitor measures what its recordings cost and spaces them
so that they stay within a share of the training time. After a restart it finds the recordings of
the earlier part of the run in its folder. Training is not affected: see `record`.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._models.wrappers import sharding_of
from .._utils.validation import check_integer
from ..errors import DataError, ResemblanceError, ResemblanceWarning, first_line, warn
from ..recording.config import RecordConfig
from ..recording.record import record_with
from ..representation.file_format import load
from ..representation.representation import (
    Representation,
    RepresentationLike,
    as_representation,
)
from ..similarity.drift import coordinates
from ..similarity.trajectory import Trajectory, trajectory

TRAJECTORY_FILE = "trajectory.json"
_SPREAD = 1.1  # of the training time at a recording, when the next may come at the earliest


class Monitor:
    """Records a probe during training, and says how far each layer has changed.

    Call `step` once per training step. Most calls do nothing. When a recording is due, it is made
    and saved as `step-000001000.rsm` in the folder, and its values are returned as a dict of floats
    for your logger, with the layer after the slash:

    - `features_vs_start/fc1`, `gradients_vs_start/fc1`: CKA with the first recording; `_vs_last`
      with the one before, `_vs_base` with the base.
    - `decibels_vs_start/fc1`: drift of the features as a signal-to-noise ratio (`coordinates`),
      also `_vs_base`. It is left out where the units of the layer are no longer those of the
      reference, and where nothing has changed.
    - `disagreement/vs_start`: share of the probe that is classified differently; also `vs_last` and
      `vs_base`.
    - `monitor/share_of_time`: the time that the monitor has taken so far, over the time that the
      rest of the training has taken in this process.

    The first recording is made at the first call, so call it before the first update. A
    configuration that cannot be recorded raises there. A later recording that fails, as when
    weights have become NaN, is a warning and training continues.

    Args:
        probe: samples as `record` takes them, the same at every recording: 128 to 1,024 of them,
            not from a stream or a generator. Labels are not needed.
        folder: folder for the recordings, which is created. A run that is continued finds its
            earlier recordings here.
        share: largest share of the training time that the monitor may take. The recordings at the
            start and at the end are always made. Recordings are also at least a tenth of the
            training time so far apart, so that their number grows with its logarithm.
        every: number of steps between recordings, instead of `share`.
        base: a recording of another network on the probe, such as the pretrained one, or the path
            of its file. It must have been recorded with the same options.
        options: options of `record`, such as `layers`, `call` or `gradients=False`. `buckets` is 0
            here, as a small probe needs none.

    Attributes:
        folder: the folder, as a `Path`.
        steps: the steps of the recordings so far.

    Raises:
        DataError: if an option is out of its range, or the folder holds a different run.

    Example:
        >>> import tempfile, torch
        >>> from resemblance.callbacks import Monitor
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        >>> x = torch.randn(128, 4)
        >>> optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> monitor = Monitor(x, tempfile.mkdtemp(), every=5)
        >>> for step in range(10):
        ...     values = monitor.step(net, step) or values
        ...     optimiser.zero_grad()
        ...     torch.nn.functional.cross_entropy(net(x), x[:, :3].argmax(1)).backward()
        ...     optimiser.step()
        >>> [name for name in values if "vs_start" in name and "/1" in name]
        ['features_vs_start/1', 'gradients_vs_start/1', 'decibels_vs_start/1']
        >>> monitor.finish(net, 10).steps
        (0, 5, 10)
    """

    def __init__(
        self,
        probe: Any,
        folder: str | os.PathLike[str],
        *,
        share: float = 0.02,
        every: int | None = None,
        base: RepresentationLike | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise DataError(f"`share` must lie between 0 and 1; found {share!r}")
        self.folder, self._probe, self._share = Path(folder), probe, share
        self._every = None if every is None else check_integer("every", every, 1)
        self._base = None if base is None else as_representation(base)
        options = {"progress": False, "buckets": 0, "outputs_of": self._base, **options}
        self._config = RecordConfig(name="run", **options)
        self._files: dict[int, Path] = {}  # of this run
        self._start: Representation | None = None
        self._last: Representation | None = None
        self._tried = -1  # the step of the last attempt
        self._began: float | None = None  # when this process began to train
        self._spent = 0.0  # seconds in this class since then
        self._cost = 0.0  # seconds of the last recording
        self._next = 0.0  # training time at which the next recording may be made

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self._files)

    def step(self, model: nn.Module, step: int) -> dict[str, float]:
        """Record the probe if that is due.

        Args:
            model: the network that is being trained; not a wrapper that runs it on many devices.
            step: number of updates so far.

        Returns:
            The values of a recording by name, or an empty dict if none was made.

        Raises:
            DataError: if the first recording cannot be made, or the folder holds a different run.
        """
        step = check_integer("step", step)
        if first := self._began is None:
            self._open(step)
        return self._record(model, step, first=first) if self._due(step) else {}

    def finish(self, model: nn.Module, step: int) -> Trajectory | None:
        """Record the trained network, and compare all recordings of the run.

        Args:
            model: the network.
            step: number of updates in all.

        Returns:
            The run as a trajectory, which is also saved as `trajectory.json` in the folder; None if
            there are fewer than two recordings.
        """
        step = check_integer("step", step)
        if self._began is None:
            self._open(step)
        if step not in self._files:
            self._record(model, step, first=not self._files)
        if len(self._files) < 2:
            return None
        run = trajectory(self._files.values(), steps=self.steps)
        run.save(self.folder / TRAJECTORY_FILE)
        return run

    def _open(self, step: int) -> None:
        """Take up the recordings of the earlier part of this run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {
            int(path.stem.removeprefix("step-")): path
            for path in sorted(self.folder.glob("step-*.rsm"))
        }
        self._files = {at: path for at, path in files.items() if at < step}
        if files and not self._files:
            raise DataError(
                f"{self.folder} contains recordings of a different run (steps {min(files)} to "
                f"{max(files)}), and this run is at step {step}: pass a new `folder`, or delete "
                "that one"
            )
        for path in files.keys() - self._files.keys():
            files[path].rename(files[path].with_suffix(".superseded"))
        if self._files:
            paths = list(self._files.values())
            self._start, self._last = load(paths[0]), load(paths[-1])
        self._began = time.perf_counter()

    def _training_time(self) -> float:
        """Seconds that this process has trained, without the monitor's own."""
        assert self._began is not None
        return time.perf_counter() - self._began - self._spent

    def _due(self, step: int) -> bool:
        last = max(self._files, default=None)
        if last is None or step <= last:
            return last is None
        if self._every is not None:
            return step - max(last, self._tried) >= self._every
        if not self._spent:  # the first call after a restart
            return True
        trained = self._training_time()  # after this recording, there is one more at the end
        return self._spent + 2 * self._cost <= self._share * trained and trained >= self._next

    def _record(self, model: nn.Module, step: int, *, first: bool) -> dict[str, float]:
        _synchronise(model)  # work of the training that is still queued is no cost of this
        trained, began, self._tried = self._training_time(), time.perf_counter(), step
        values: dict[str, float] = {}
        try:
            with _said_once(first):
                values = self._recorded(model, step)
        except ResemblanceError as error:
            if first:
                raise
            warn(f"recording at step {step} failed, and training continues: {first_line(error)}")
        finally:
            self._cost = time.perf_counter() - began
            self._spent += self._cost
            self._next = _SPREAD * trained
        if not first and trained > 0:
            values["monitor/share_of_time"] = self._spent / trained
        return values

    def _recorded(self, model: nn.Module, step: int) -> dict[str, float]:
        """One recording, saved, and its values."""
        if sharding := sharding_of(model):
            raise DataError(
                f"{sharding} splits the weights over several processes, and a Monitor records in "
                "one of them. Save checkpoints of the whole model and record those"
            )
        rep = record_with(model, self._probe, replace(self._config, name=f"step {step}"))
        if self._start is None or self._last is None:
            self._start = self._last = rep
        values = self._compared(rep, self._last)
        self._files[step], self._last = rep.save(self.folder / f"step-{step:09d}.rsm"), rep
        return values

    def _compared(self, rep: Representation, last: Representation) -> dict[str, float]:
        """A recording beside the first, the one before, and the base; the first beside itself."""
        known = {"start": self._start, "last": last, "base": self._base}
        references = {name: other for name, other in known.items() if other is not None}
        run = trajectory([*references.values(), rep], steps=[*references, "now"])
        values: dict[str, float] = {}
        for at, (name, other) in enumerate(references.items()):
            for part in run.courses():
                values |= {
                    f"{part.kernel}_vs_{name}/{_key(layer)}": float(score)
                    for layer, score in zip(run.layers, part.scores[:, at, -1], strict=True)
                }
            if run.behaviour is not None:
                values[f"disagreement/vs_{name}"] = float(run.behaviour.disagreement[at, -1])
            if name != "last":
                drift = coordinates(other, rep)
                for layer, decibels, same in zip(
                    drift.layers, drift.decibels[0], drift.shared_layers, strict=True
                ):
                    if same:
                        values[f"decibels_vs_{name}/{_key(layer)}"] = float(decibels)
        return {key: value for key, value in values.items() if math.isfinite(value)}


def _key(layer: str) -> str:
    """A layer as every logger takes it.

    >>> _key("encoder.act#2:in")
    'encoder.act_2_in'
    """
    return re.sub(r"[^\w.\-]", "_", layer)


def _synchronise(model: nn.Module) -> None:
    for weight in model.parameters():
        if weight.is_cuda:
            torch.cuda.synchronize(weight.device)
        return


@contextlib.contextmanager
def _said_once(first: bool) -> Iterator[None]:
    """What the first recording warns of is true of all of them."""
    with contextlib.ExitStack() as stack:
        if not first:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", ResemblanceWarning)
        yield
