"""The trainers of Lightning and of transformers, watched: the same training, and values logged."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import resemblance as rs
from optional_libraries import needs, usable_torchvision
from resemblance.callbacks import Monitor, lightning_callback, transformers_callback
from resemblance.errors import MissingExtra

pytestmark = [
    pytest.mark.filterwarnings("ignore:some error bars cannot be trusted"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of other libraries
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
]
X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > X[:, 1]).long()
PROBE = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))


def same(one, two):
    """Whether nested states are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


# -- Lightning -------------------------------------------------------------------------------------


def lightning_run(folder, monitor=None, steps=20, checkpoint=None):
    """A training, which may be continued: the trainer, and the states of all that it holds."""
    usable_torchvision()
    import lightning.pytorch as lightning
    from lightning.pytorch.loggers import CSVLogger

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 2)
            )

        def forward(self, x):
            return self.body(x)

        def training_step(self, batch, _):
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    torch.manual_seed(5)
    module = Module()
    rows = torch.utils.data.TensorDataset(X, Y)
    loader = torch.utils.data.DataLoader(rows, batch_size=24, shuffle=True)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        accumulate_grad_batches=2,  # so that batches are not steps
        callbacks=[] if monitor is None else [lightning_callback(monitor)],
        logger=CSVLogger(folder),
        log_every_n_steps=7,  # not the steps of recordings
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, ckpt_path=checkpoint)
    trainer.save_checkpoint(folder / "last.ckpt")
    saved = torch.load(folder / "last.ckpt", weights_only=False)
    return trainer, [saved["state_dict"], saved["optimizer_states"], torch.get_rng_state()]


@needs("lightning")
def test_a_lightning_training_is_the_same_and_its_values_are_logged(tmp_path):
    monitor = Monitor(PROBE, tmp_path / "monitor", every=4)
    trainer, watched = lightning_run(tmp_path / "a", monitor, 10)
    _, plain = lightning_run(tmp_path / "b", None, 10)
    assert same(watched, plain)
    assert monitor.steps == (0, 4, 8, 10)
    run = rs.Trajectory.load(tmp_path / "monitor" / "trajectory.json")
    assert run.steps == monitor.steps
    assert run.layers[0].startswith("body.")
    name = f"features_vs_start/{run.layers[0]}"
    with open(f"{trainer.logger.log_dir}/metrics.csv") as file:
        logged = {int(row["step"]): float(row[name]) for row in csv.DictReader(file) if row[name]}
    assert list(logged) == [0, 4, 8]
    assert list(logged.values()) == pytest.approx(run.features.scores[0, 0, :3].tolist())


@pytest.mark.slow
@needs("lightning")
def test_a_lightning_training_that_is_resumed_goes_on_with_its_recordings(tmp_path):
    lightning_run(tmp_path, Monitor(PROBE, tmp_path / "monitor", every=4), 6)
    again = Monitor(PROBE, tmp_path / "monitor", every=4)
    lightning_run(tmp_path, again, 10, checkpoint=tmp_path / "last.ckpt")
    assert again.steps == (0, 4, 8, 10)


TWO_PROCESSES = """
import sys

import torch
from torch import nn

from optional_libraries import usable_torchvision
from resemblance.callbacks import Monitor, lightning_callback

usable_torchvision()
import lightning.pytorch as lightning

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self(batch), (batch[:, 0] > 0).long())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


if __name__ == "__main__":
    trainer = lightning.Trainer(
        max_steps=4, accelerator="cpu", devices=2, strategy="ddp_spawn", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[lightning_callback(Monitor(X, sys.argv[1], every=2))],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(X, batch_size=12))
"""


@pytest.mark.slow
@needs("lightning")
def test_of_two_lightning_processes_the_first_records(tmp_path):
    (tmp_path / "run.py").write_text(TWO_PROCESSES)
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "run.py", "monitor"]
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=240)
    run = rs.Trajectory.load(tmp_path / "monitor" / "trajectory.json")
    assert run.steps == (0, 2, 4)
    assert run.features.scores[0, 0, 2] < 1


# -- transformers ----------------------------------------------------------------------------------


def transformers_run(folder, monitor=None, resume=False, **arguments):
    """The training of a little language model."""
    from little_language import gpt2

    model = gpt2()
    from transformers import Trainer, TrainingArguments

    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 300, (48, 12), generator=generator)
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = {"max_steps": 8, "save_steps": 6, "logging_steps": 2, **arguments}
    trainer = Trainer(
        model,
        TrainingArguments(
            folder, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="steps",
            per_device_train_batch_size=8, learning_rate=1e-3, seed=3, **arguments,
        ),
        train_dataset=rows,
    )  # fmt: skip
    if monitor is not None:
        trainer.add_callback(transformers_callback(monitor, trainer))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def texts():
    """Token ids of the probe, as the model takes them."""
    generator = torch.Generator().manual_seed(4)
    return {"input_ids": torch.randint(0, 300, (60, 12), generator=generator)}


def losses(trainer):
    return [row for row in trainer.state.log_history if "loss" in row]


@needs("transformers")
def test_a_transformers_training_is_the_same_and_its_values_are_logged(tmp_path, capsys):
    monitor = Monitor(texts(), tmp_path / "monitor", every=4, tokens=4)
    watched = transformers_run(tmp_path / "a", monitor)
    drawn = torch.get_rng_state()
    plain = transformers_run(tmp_path / "b")
    assert torch.equal(drawn, torch.get_rng_state())
    assert same(watched.model.state_dict(), plain.model.state_dict())
    assert same(watched.optimizer.state_dict(), plain.optimizer.state_dict())
    assert [row["loss"] for row in losses(watched)] == [row["loss"] for row in losses(plain)]
    assert [row["step"] for row in losses(watched)] == [2, 4, 6, 8]  # none is lost to the monitor's
    assert monitor.steps == (0, 4, 8)
    run = rs.Trajectory.load(tmp_path / "monitor" / "trajectory.json")
    name = f"gradients_vs_start/{run.layers[0]}"
    logged = {row["step"]: row[name] for row in watched.state.log_history if name in row}
    assert list(logged) == [0, 4, 8]
    assert list(logged.values()) == pytest.approx(run.gradients.scores[0, 0].tolist())


@pytest.mark.slow
@needs("transformers")
def test_a_transformers_training_that_is_resumed_goes_on_with_its_recordings(tmp_path, capsys):
    options = {"every": 4, "tokens": 4, "gradients": False}
    transformers_run(tmp_path / "a", Monitor(texts(), tmp_path / "monitor", **options))
    again = Monitor(texts(), tmp_path / "monitor", **options)
    trainer = transformers_run(tmp_path / "a", again, resume=str(tmp_path / "a" / "checkpoint-6"))
    assert again.steps == (0, 4, 8)
    state = json.loads((tmp_path / "a" / "checkpoint-8" / "trainer_state.json").read_text())
    assert state["global_step"] == trainer.state.global_step == 8
    assert (tmp_path / "monitor" / "step-000000008.superseded").exists()


# -- without them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_without_lightning_it_says_what_to_install(name, tmp_path, monkeypatch):
    if name == "pytorch_lightning":  # the older package, where that one is in use
        monkeypatch.delitem(sys.modules, "lightning", raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"needs Lightning.*pip install .*\[lightning"):
        lightning_callback(Monitor(PROBE, tmp_path))


def test_without_transformers_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[text\]'"):
        transformers_callback(Monitor(PROBE, tmp_path), None)
