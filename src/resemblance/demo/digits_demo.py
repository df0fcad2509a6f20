"""Digits demo (`resemblance demo`): train, record and compare small networks, in a minute.

The networks of `digit_networks` are trained, recorded, compared, and written up in a folder with
the commands that reproduce each step. Every sentence printed at the end is computed from
measurements. The last one is the verdict of the `check` that stops the worst copy.

The figure of the copies shows how similar each is to the original: on the left the mean over
layers of features and of gradients, on the right the share of images that it classifies
differently, on a logarithmic scale.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from .._data.load_data import load_digits_data
from .._utils.atomic_files import check_writable, make_folder, write_atomically
from .._utils.formatting import wrap_sentence
from .._utils.progress import progress_bar
from ..analysis.adaptation import adaptation
from ..errors import ResemblanceWarning
from ..gate.check import check
from ..gate.copies import Copies, copies
from ..gate.verdict import Verdict
from ..recording.record import record
from ..representation.representation import Representation
from ..similarity.compare import compare
from ..similarity.compare_all import compare_all
from ..views import plots
from ..views.report import report
from .digit_networks import NETWORK_COUNT, TRAIN_COUNT, DigitNet, Network, demo_networks

_NETWORKS_TEMPLATE = '''\
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


def make_demo_folder(out: Path) -> None:
    """Make the folder, or refuse one in which the demo could not be left."""
    make_folder(out)
    for name in ("README.md", "networks.py", "report.html"):
        check_writable(out / name)


def write_demo_files(
    out: Path, nets: Sequence[Network], findings: Sequence[str], check: str, verdict: Verdict
) -> None:
    """Write README.md, the demo in words and commands, and networks.py, which builds its models.

    `check` is the command whose verdict closes the demo.
    """
    networks = _NETWORKS_TEMPLATE.format(network=inspect.getsource(DigitNet), seen=TRAIN_COUNT)
    write_atomically(out / "networks.py", networks.encode())
    template = resources.files(__package__).joinpath("README.template.md")
    readme = template.read_text(encoding="utf-8").format(
        findings="\n".join(f"- {sentence}" for sentence in findings),
        table="\n".join(f"| {n.name} | {n.story} | {n.accuracy:.1%} |" for n in nets),
        commands="\n".join(map(_record_command, nets)),
        files=" ".join(f"{net.name}.rsm" for net in nets),
        check=check,
        verdict=verdict.paragraph(),
        status=verdict.exit_status,
    )
    write_atomically(out / "README.md", readme.encode())


def _record_command(net: Network) -> str:
    """How a network is recorded from its weights."""
    build = "odd_even" if net.model.head.out_features == 2 else "ten_digits"
    return (
        f"resemblance record --model networks.py:{build} --weights {net.name}.safetensors "
        f"--data networks.py:unseen --data-id 'unseen digits' -o {net.name}.rsm"
    )


RepsByName = Mapping[str, Representation]
LINE_WIDTH = 80  # of the lines that are told
CHECK_COMMAND = """\
resemblance check twin-1.rsm twin-1-pruned.rsm \\
    --max-disagreement 0.02 --min gradients=0.8"""  # what `run` asks, for the command line


@contextmanager
def quietly_on_one_thread() -> Iterator[None]:
    """Without this package's warnings, on one core: for work this small more only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResemblanceWarning)
            yield
    finally:
        torch.set_num_threads(before)


def run(out: Path, *, say: Callable[[str], None]) -> None:
    """Train, record, compare, and write `out`; `say` is given each line of the story."""
    with quietly_on_one_thread():  # ‖μ‖ of some layers is zero within its error
        make_demo_folder(out)
        nets = _train_networks(out, say)
        images = load_digits_data()[0][TRAIN_COUNT:]
        say(f"Recording each on {len(images):,} unseen images: one pass, no labels ...")
        reps = {
            net.name: _record_network(net, images, "unseen", out / f"{net.name}.rsm")
            for net in nets
        }
        changed = {"turned": images.rot90(1, (2, 3)), "negative": 1 - images}
        elsewhere = {
            what: _record_network(nets[0], samples, what, out / f"twin-1-on-{what}.rsm")
            for what, samples in changed.items()
        }
        say("Comparing ...")
        findings = [
            _nearest_finding(reps, out),
            _other_task_finding(reps, out),
            _adaptation_finding(reps["twin-1"], elsewhere, out),
            _copies_finding(nets, reps, out),
        ]
        copies = reps["twin-1"], reps["twin-1-pruned"]
        verdict = check(*copies, max_disagreement=0.02, min={"gradients": 0.8})
        report(list(reps.values()), out / "report.html", title="Nine small networks on digits")
        write_demo_files(out, nets, findings, CHECK_COMMAND, verdict)
    for sentence in findings:
        say_wrapped(say, sentence, "• ")
    say("")
    stops = "stops" if verdict.status == "failed" else "does not stop"
    say_wrapped(
        say,
        f"This check {stops} the pruned copy. It allows 2 % of predictions to differ, and "
        "requires a gradient CKA of 0.8 at every layer. In the demo's folder:",
    )
    for line in CHECK_COMMAND.splitlines():
        say(f"    {line}")
    say_wrapped(say, f"{verdict.paragraph()} Exit status {verdict.exit_status}.")
    say("")
    say(f"Open {out / 'report.html'}; {out / 'README.md'} has the commands that made it.")


def _train_networks(out: Path, say: Callable[[str], None]) -> list[Network]:
    """Train the networks, write their weights, and say how often each is right."""
    say(f"Training {NETWORK_COUNT} small networks on scikit-learn's handwritten digits ...")
    with progress_bar(None, NETWORK_COUNT, "training", "networks") as advance:
        nets = list(demo_networks(advance))
    say("How many unseen images each gets right:")
    for net in nets:
        say(f"  {net.accuracy:6.1%}  {net.name:<14} {net.story}")
        state = {key: value.contiguous() for key, value in net.model.state_dict().items()}
        write_atomically(out / f"{net.name}.safetensors", to_safetensors(state))
    return nets


def say_wrapped(say: Callable[[str], None], sentence: str, mark: str = "") -> None:
    """Say a sentence in lines of `LINE_WIDTH`, a number and its error together."""
    for line in wrap_sentence(mark + sentence, LINE_WIDTH, indent=len(mark)):
        say(line)


def _record_network(net: Network, images: Tensor, what: str, path: Path) -> Representation:
    rep = record(net.model, images, name=net.name, data_id=f"{what} digits")
    rep.save(path)
    return rep


# -- what was found: sentences, each from numbers measured here, and figures drawn on the way ----


def _nearest_finding(reps: RepsByName, out: Path) -> str:
    """Which independently trained network is most like twin-1, and which least."""
    alike = compare_all(list(reps.values()), kernel="product")
    plots.save_figure(alike.plot(), out / "networks.png")
    others = [i for i, name in enumerate(alike.models) if not name.startswith("twin-1")]
    far, *_, near = sorted(others, key=lambda i: alike.scores[0, i])
    close, distant = (f"{alike.scores[0, i]:.2f} ± {alike.stderr[0, i]:.2f}" for i in (near, far))
    return (
        f"Of the independently trained networks, {alike.models[near]} is most similar to twin-1 "
        f"({close}, product of features and gradients) and {alike.models[far]} least "
        f"({distant})."
    )


def _other_task_finding(reps: RepsByName, out: Path) -> str:
    """Where a different task changes a network more than a different seed does."""
    twin, other = (
        compare(reps["twin-1"], reps[name], kernel="features") for name in ("twin-2", "odd-even")
    )
    plots.save_figure(twin.plot(), out / "twins.png")
    plots.save_figure(other.plot(), out / "tasks.png")
    (same, _, _), (alike, error, _) = twin.by_layer(), other.by_layer()
    at = int(np.diff(same - alike, prepend=0.0).argmax())  # where the gap to a twin grows most
    first, here = other.rows[0], other.rows[at]
    aims, twins_aims = (
        compare(reps["twin-1"], reps[name], kernel="gradients").mean()[0]
        for name in ("odd-even", "twin-2")
    )
    return (
        f"A different task changes {here} most: feature CKA of twin-1 and odd-even is "
        f"{alike[0]:.2f} at {first} and {alike[at]:.2f} ± {error[at]:.2f} at {here} (twins: "
        f"{same[at]:.2f}). Their loss gradients hardly agree: CKA {aims:.2f} (twins: "
        f"{twins_aims:.2f})."
    )


def _copies_finding(nets: Sequence[Network], reps: RepsByName, out: Path) -> str:
    """What features, gradients and predictions say of copies that were tuned, rounded or pruned."""
    twin = reps["twin-1"]
    beside = copies(twin, [rep for name, rep in reps.items() if name not in ("twin-1", "twin-3")])
    plots.save_figure(beside.plot(), out / "copies.png")
    rows = {name: i for i, name in enumerate(beside.name)}
    pruned, rounded = rows["twin-1-pruned"], rows["twin-1-int8"]
    seen, wanted = beside.features[pruned], beside.gradients[pruned]
    right = {net.name: net.accuracy for net in nets}
    lost = 100 * (right["twin-1"] - right["twin-1-pruned"])
    hidden = ": gradients show the damage that features hide" if wanted < seen else ""
    return (
        f"Pruning half of twin-1's weights leaves feature CKA at {seen:.2f} and gradient CKA at "
        f"{wanted:.2f}. The copy predicts a different digit for "
        f"{_prediction_change(beside, pruned)}, and loses {lost:.1f} points of accuracy{hidden}. "
        f"Rounding to 8 bits leaves gradient CKA at {beside.gradients[rounded]:.2f}, with a "
        f"different digit for {_prediction_change(beside, rounded)}."
    )


def _prediction_change(of: Copies, i: int) -> str:
    """What a copy does, in words: the share of other predictions and their divergence."""
    share = f"{100 * of.disagreement[i]:.1f} ± {100 * of.disagreement_stderr[i]:.1f} % of"
    many = share if of.disagreement[i] else f"none of {of.samples:,}"
    return f"{many} images (KL {of.kl[i]:.2g} ± {of.kl_stderr[i]:.1g} nats)"


def _adaptation_finding(own: Representation, elsewhere: RepsByName, out: Path) -> str:
    """To which data twin-1 would have to adapt most, by the norm of its mean embedding."""
    results = {name: adaptation(rep) for name, rep in {"its own": own, **elsewhere}.items()}
    first, *others = results.values()
    plots.save_figure(first.plot(*others), out / "adaptation.png")
    last = {
        name: [np.nan_to_num(result[f"mean_embedding{end}"][-1]) for end in ("", "_stderr")]
        for name, result in results.items()
    }
    most = max(last, key=lambda name: last[name][0])
    listed = ", ".join(f"{norm:.2f} ± {e:.2f} on {name} digits" for name, (norm, e) in last.items())
    return f"twin-1 has to adapt most to {most} digits: ‖μ‖ at its last layer is {listed}."
