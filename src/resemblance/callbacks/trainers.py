"""A `Monitor` as a callback of Lightning's Trainer, or of the transformers library's.

Each library is imported when its function is called. A callback passes the network and its step to
the monitor at the start of training, after every update and at the end, in the first process only,
and the values to the loggers of the trainer.
"""

from __future__ import annotations

import sys
from typing import Any

from ..errors import import_optional
from .monitor import Monitor


def lightning_callback(monitor: Monitor) -> Any:
    """A callback for the Trainer of Lightning, of the package in use: lightning or its older name.

    Values go to every logger of the trainer. Layers are named as in the LightningModule, which is
    called as `module(probe)`; if that is not how your module runs, create the monitor with
    `call=`, a function of the module and a batch.

    Args:
        monitor: the monitor.

    Returns:
        A `Callback` to be passed as `Trainer(callbacks=[...])`.

    Raises:
        MissingExtra: if Lightning is not installed.

    Example:
        >>> from resemblance.callbacks import Monitor, lightning_callback
        >>> def watched(trainer_class, probe):
        ...     return trainer_class(callbacks=[lightning_callback(Monitor(probe, "monitor"))])
    """
    older = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    name = "pytorch_lightning" if older else "lightning.pytorch"
    library = import_optional(name, "Lightning", "lightning")

    class MonitorCallback(library.Callback):  # type: ignore[misc, name-defined]
        """Watches the layers of the network during training."""

        def __reduce__(self) -> tuple[Any, ...]:  # into the processes that the trainer spawns
            return lightning_callback, (monitor,)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._step(trainer, pl_module)

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            self._step(trainer, pl_module)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero:
                monitor.finish(pl_module, trainer.global_step)

        def _step(self, trainer: Any, pl_module: Any) -> None:
            values = monitor.step(pl_module, trainer.global_step) if trainer.is_global_zero else {}
            for logger in trainer.loggers if values else ():
                logger.log_metrics(values, trainer.global_step)

    return MonitorCallback()


def transformers_callback(monitor: Monitor, trainer: Any) -> Any:
    """A callback for the Trainer of the transformers library.

    Values go through `trainer.log`, and so into its history and to all of its integrations.

    Args:
        monitor: the monitor. Its probe may be a tokenised data set, or a dict of tensors.
        trainer: the trainer, which a callback cannot find by itself.

    Returns:
        A `TrainerCallback` to be passed to `trainer.add_callback`.

    Raises:
        MissingExtra: if transformers is not installed.

    Example:
        >>> from resemblance.callbacks import Monitor, transformers_callback
        >>> def watch(trainer, probe):
        ...     trainer.add_callback(transformers_callback(Monitor(probe, "monitor"), trainer))
    """
    library = import_optional("transformers", "transformers", "text")

    class MonitorCallback(library.TrainerCallback):  # type: ignore[misc, name-defined]
        """Watches the layers of the network during training."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._step(state, control, kwargs["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._step(state, control, kwargs["model"])

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                monitor.finish(kwargs["model"], state.global_step)

        def _step(self, state: Any, control: Any, model: Any) -> None:
            if state.is_world_process_zero and (values := monitor.step(model, state.global_step)):
                due = control.should_log  # which `log` takes for its own
                trainer.log(values)
                control.should_log = due

    return MonitorCallback()
