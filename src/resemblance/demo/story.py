"""`resemblance demo`: something true about real networks on real data, in about a minute.

The networks of `digit_networks` are trained, recorded, compared, and written up with the commands
that reproduce each step. Every sentence printed at the end is computed from what was measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from .._atomic_files import write_atomically
from .._data.named_data import digits
from .._progress_bar import progress
from ..analysis.mean_embedding import adaptation
from ..errors import ResemblanceWarning
from ..recording.from_model import record
from ..representation.representation import Representation
from ..similarity.combinations import Kernel
from ..similarity.many_networks import compare_all
from ..similarity.two_networks import compare
from ..views import figures as plot
from ..views.report_page import report
from . import folder
from .digit_networks import COUNT, TRAINED_ON, Network, networks

Reps = Mapping[str, Representation]


@contextmanager
def one_thread() -> Iterator[None]:
    """Work this small is fastest on one core; more only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(out: Path, *, say: Callable[[str], None]) -> None:
    """Train, record, compare, and write `out`; `say` is given each line of the story."""
    with one_thread(), warnings.catch_warnings():
        # ‖μ‖ of some layers is zero within its error; the page leaves those blank
        warnings.simplefilter("ignore", ResemblanceWarning)
        folder.make(out)
        say(f"Training {COUNT} small networks on scikit-learn's handwritten digits ...")
        with progress(None, COUNT, "training", "networks") as advance:
            nets = list(networks(advance))
        for net in nets:
            say(f"  {net.name:<14} {net.story}, right on {net.accuracy:.1%} of unseen images")
            state = {key: value.contiguous() for key, value in net.model.state_dict().items()}
            write_atomically(out / f"{net.name}.safetensors", to_safetensors(state))
        images = digits()[0][TRAINED_ON:]
        say(f"Recording each on {len(images):,} unseen images: one pass, no labels ...")
        reps = {net.name: _recorded(net, images, "unseen", out / f"{net.name}.rsm") for net in nets}
        changed = {"turned": images.rot90(1, (2, 3)), "negative": 1 - images}
        elsewhere = {
            what: _recorded(nets[0], samples, what, out / f"twin-1-on-{what}.rsm")
            for what, samples in changed.items()
        }
        say("Comparing ...")
        findings = [
            _nearest(reps, out),
            _parting(reps, out),
            _copies(nets, reps, out),
            _adapting(reps["twin-1"], elsewhere, out),
        ]
        report(list(reps.values()), out / "report.html", title="Nine small networks on digits")
        folder.write(out, nets, findings)
    for line in ("", *(f"• {sentence}" for sentence in findings), ""):
        say(line)
    say(f"Open {out / 'report.html'}; {out / 'README.md'} has the commands that made it.")


def _recorded(net: Network, images: Tensor, what: str, path: Path) -> Representation:
    rep = record(net.model, images, name=net.name, data_id=f"{what} digits")
    rep.save(path)
    return rep


# -- what was found: sentences, each from numbers measured here, and figures drawn on the way ----


def _nearest(reps: Reps, out: Path) -> str:
    """Which independently trained network is most like twin-1, and which least."""
    alike = compare_all(list(reps.values()), kernel="product")
    plot.save(alike.plot(), out / "networks.png")
    others = [i for i, name in enumerate(alike.models) if not name.startswith("twin-1")]
    far, *_, near = sorted(others, key=lambda i: alike.scores[0, i])
    close, distant = (f"{alike.scores[0, i]:.2f} ± {alike.stderr[0, i]:.2f}" for i in (near, far))
    return (
        f"Of the networks trained apart from it, twin-1 is most like {alike.models[near]} "
        f"({close}, product of features and gradients) and least like {alike.models[far]} "
        f"({distant})."
    )


def _parting(reps: Reps, out: Path) -> str:
    """Where another task sets a network further apart than another seed does."""
    twin, other = (
        compare(reps["twin-1"], reps[name], kernel="features") for name in ("twin-2", "odd-even")
    )
    plot.save(twin.plot(), out / "twins.png")
    plot.save(other.plot(), out / "tasks.png")
    (same, _, _), (alike, error, _) = twin.by_layer(), other.by_layer()
    at = int(np.diff(same - alike, prepend=0.0).argmax())  # where the gap to a twin grows most
    first, here = other.rows[0], other.rows[at]
    aims, twins_aims = (_mean(reps, name, "gradients")[0] for name in ("odd-even", "twin-2"))
    return (
        f"Ten digits and odd/even part at {here}: what twin-1 and odd-even see is alike to "
        f"{alike[0]:.2f} at {first} but to {alike[at]:.2f} ± {error[at]:.2f} at {here}, "
        f"where twins keep {same[at]:.2f}; what they want (gradients) is alike to {aims:.2f}, "
        f"for twins {twins_aims:.2f}."
    )


def _copies(nets: Sequence[Network], reps: Reps, out: Path) -> str:
    """What features and gradients say of copies that were tuned, rounded or pruned."""
    names = [name for name in reps if name not in ("twin-1", "twin-3")]
    features = np.array([_mean(reps, name, "features") for name in names])  # (names, 2)
    gradients = np.array([_mean(reps, name, "gradients") for name in names])
    order = np.argsort(-gradients[:, 0])
    figure = plot.figure(8, 3.8)
    axes = figure.subplots()
    for offset, found, label, colour in (
        (-0.2, features, "features (centred CKA)", "#00204c"),
        (0.2, gradients, "gradients (plain CKA)", "#c8b866"),
    ):
        (value, error), x = found[order].T, np.arange(len(names)) + offset
        bars = {"lw": 1, "capsize": 2}
        axes.bar(x, value, 0.38, yerr=2 * error, label=label, color=colour, error_kw=bars)
    axes.set_xticks(range(len(names)), [names[i] for i in order], rotation=20, ha="right")
    axes.set(ylim=(0, 1.02), ylabel="alike to twin-1, mean over layers")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    plot.save(figure, out / "copies.png")
    at = names.index("twin-1-pruned")
    seen, wanted = features[at, 0], gradients[at, 0]
    pruning = "Removing half of twin-1's weights leaves"
    if not wanted < seen:
        return f"{pruning} features at {seen:.2f} and gradients at {wanted:.2f}."
    right = {net.name: net.accuracy for net in nets}
    lost = 100 * (right["twin-1"] - right["twin-1-pruned"])
    return (
        f"{pruning} its features at {seen:.2f} of the original but its gradients at {wanted:.2f}, "
        f"and costs {lost:.1f} points of accuracy: gradients see the damage that features hide."
    )


def _mean(reps: Reps, name: str, kernel: Kernel) -> tuple[float, float]:
    """How alike a network is to twin-1, mean over layers, and its standard error."""
    return compare(reps["twin-1"], reps[name], kernel=kernel).mean()


def _adapting(own: Representation, elsewhere: Reps, out: Path) -> str:
    """To which data twin-1 would have to adapt most, by the norm of its mean embedding."""
    results = {name: adaptation(rep) for name, rep in {"its own": own, **elsewhere}.items()}
    first, *others = results.values()
    plot.save(first.plot(*others), out / "adaptation.png")
    last = {
        name: [np.nan_to_num(result[f"mean_embedding{end}"][-1]) for end in ("", "_stderr")]
        for name, result in results.items()
    }
    most = max(last, key=lambda name: last[name][0])
    listed = ", ".join(f"{norm:.2f} ± {e:.2f} on {name} digits" for name, (norm, e) in last.items())
    return f"twin-1 must adapt most to {most} digits: ‖μ‖ at its last layer is {listed}."
