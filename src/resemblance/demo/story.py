"""`resemblance demo`: something true about real networks on real data, in about a minute.

Small convolutional networks learn scikit-learn's handwritten digits: twins from other seeds, one
that learns odd against even on the same images, one left untrained, and copies of a twin that were
fine-tuned, pruned or quantised. They are recorded, compared, and written up with the commands that
reproduce each step. Every sentence printed at the end is computed from what was measured.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .._data.named_data import digits
from .._progress_bar import progress
from ..analysis.mean_embedding import adaptation
from ..errors import ResemblanceWarning
from ..recording.from_model import record
from ..representation.representation import Representation
from ..similarity.comparison import Comparison
from ..similarity.many_networks import compare_all
from ..similarity.two_networks import compare
from ..views import figures as plot
from ..views.report_page import report

EPOCHS = 20
TRAINED_ON = 900  # of 1,797 images; everything is measured on the rest, which no network has seen


class DigitNet(nn.Module):
    """Four convolutions and a linear head for 8 × 8 images."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()
        self.conv2, self.act2 = nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU()
        self.conv3, self.act3 = nn.Conv2d(32, 48, 3, padding=1), nn.ReLU()
        self.conv4, self.act4 = nn.Conv2d(48, 64, 3, padding=1, stride=2), nn.ReLU()
        self.head = nn.Linear(64 * 2 * 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        for i in (1, 2, 3, 4):
            x = getattr(self, f"act{i}")(getattr(self, f"conv{i}")(x))
        return self.head(x.flatten(1))


@dataclass(frozen=True)
class Network:
    """A trained network, what became of it, and how often it is right on unseen images."""

    name: str
    story: str
    classes: int
    model: DigitNet
    accuracy: float


def train(
    images: Tensor, labels: Tensor, *, classes: int, seed: int, start: DigitNet | None = None
) -> DigitNet:
    """A network after `EPOCHS`, or after a fifth of them more, gently, from a start."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = copy.deepcopy(start) if start is not None else DigitNet(classes)
        epochs, rate = (EPOCHS, 6e-3) if start is None else (EPOCHS // 5, 6e-4)
        steps = epochs * -(-len(images) // 100)
        optimiser = torch.optim.AdamW(net.parameters(), rate, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(epochs):
            for rows in torch.randperm(len(images)).split(100):
                loss = cross_entropy(net(images[rows]), labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
    return net


def pruned(net: DigitNet, share: float) -> DigitNet:
    """A copy with the smallest weights of each layer set to zero."""
    net = copy.deepcopy(net)
    for weight in (p for p in net.parameters() if p.ndim > 1):
        limit = weight.detach().abs().flatten().kthvalue(int(share * weight.numel())).values
        weight.data[weight.detach().abs() <= limit] = 0
    return net


def quantised(net: DigitNet, bits: int) -> DigitNet:
    """A copy with the weights of each layer rounded to 2^bits equal steps."""
    net = copy.deepcopy(net)
    for weight in (p for p in net.parameters() if p.ndim > 1):
        step = weight.detach().abs().max() / (2 ** (bits - 1) - 1)
        weight.data = (weight.detach() / step).round() * step
    return net


def networks(advance: Callable[[int], None]) -> Iterator[Network]:
    """The networks of the demo, one after the other."""
    images, labels = digits()
    seen, unseen = slice(0, TRAINED_ON), slice(TRAINED_ON, None)
    odd = labels % 2

    def made(name: str, story: str, model: DigitNet, truth: Tensor) -> Network:
        with torch.no_grad():
            right = (model(images[unseen]).argmax(1) == truth[unseen]).float().mean()
        advance(1)
        return Network(name, story, model.head.out_features, model, float(right))

    x, y = images[seen], labels[seen]
    twin = train(x, y, classes=10, seed=1)
    yield made("twin-1", "trained on the ten digits", twin, labels)
    for seed in (2, 3):
        net = train(x, y, classes=10, seed=seed)
        yield made(f"twin-{seed}", "the same from another seed", net, labels)
    net = train(x, odd[seen], classes=2, seed=4)
    yield made("odd-even", "trained to tell odd digits from even ones", net, odd)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        net = DigitNet(10)
    yield made("untrained", "random weights", net, labels)
    net = train(x, y, classes=10, seed=6, start=twin)
    yield made("twin-1-tuned", "twin-1 trained a little longer", net, labels)
    yield made("twin-1-int8", "twin-1 with weights rounded to 8 bits", quantised(twin, 8), labels)
    yield made("twin-1-int4", "twin-1 with weights rounded to 4 bits", quantised(twin, 4), labels)
    yield made(
        "twin-1-pruned", "twin-1 with half of its weights removed", pruned(twin, 0.5), labels
    )


COUNT = 9  # networks that `networks` yields


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
        _run(out, say)


def _run(out: Path, say: Callable[[str], None]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    say(f"Training {COUNT} small networks on scikit-learn's handwritten digits ...")
    with progress(None, COUNT, "training", "networks") as advance:
        nets = list(networks(advance))
    for net in nets:
        say(f"  {net.name:<14} {net.story}, right on {net.accuracy:.1%} of unseen images")
        state = {key: value.contiguous() for key, value in net.model.state_dict().items()}
        save_file(state, out / f"{net.name}.safetensors")
    images = digits()[0][TRAINED_ON:]
    say(f"Recording each on {len(images):,} unseen images: one pass, no labels ...")
    reps: dict[str, Representation] = {}
    for net in nets:
        reps[net.name] = record(net.model, images, name=net.name, data_id="unseen digits")
        reps[net.name].save(out / f"{net.name}.rsm")
    changed = {"turned": images.rot90(1, (2, 3)), "negative": 1 - images}
    elsewhere = {
        name: record(nets[0].model, x, name="twin-1", data_id=f"{name} digits")
        for name, x in changed.items()
    }
    for name, rep in elsewhere.items():
        rep.save(out / f"twin-1-on-{name}.rsm")
    say("Comparing ...")
    findings = _findings(nets, reps, elsewhere, out)
    report(list(reps.values()), out / "report.html", title="Nine small networks on digits")
    (out / "networks.py").write_text(_networks_file())
    (out / "README.md").write_text(_readme(nets, findings))
    say("")
    for sentence in findings:
        say(f"• {sentence}")
    say("")
    say(f"Open {out / 'report.html'}; {out / 'README.md'} has the commands that made it.")


# -- what was found -----------------------------------------------------------------------------


def _findings(
    nets: list[Network],
    reps: dict[str, Representation],
    elsewhere: dict[str, Representation],
    out: Path,
) -> list[str]:
    """Plain sentences, each from numbers measured here; the figures are drawn on the way."""
    alike = compare_all(list(reps.values()), kernel="product")
    alike.plot().savefig(out / "networks.png", dpi=150)
    twins, tasks = (
        {k: compare(reps["twin-1"], reps[name], kernel=k) for k in ("features", "gradients")}
        for name in ("twin-2", "odd-even")
    )
    twins["features"].plot().savefig(out / "twins.png", dpi=150)
    tasks["features"].plot().savefig(out / "tasks.png", dpi=150)
    return [
        _nearest(alike.models, alike.scores, alike.stderr),
        _parting(twins, tasks),
        _copies(nets, reps, out),
        _adapting(reps["twin-1"], elsewhere, out),
    ]


def _nearest(models: tuple[str, ...], scores: np.ndarray, stderr: np.ndarray) -> str:
    """Which independently trained network is most like twin-1."""
    others = [i for i, name in enumerate(models) if not name.startswith("twin-1")]
    near = max(others, key=lambda i: scores[0, i])
    far = min(others, key=lambda i: scores[0, i])
    return (
        f"Of the networks trained apart from it, twin-1 is most like {models[near]} "
        f"({scores[0, near]:.2f} ± {stderr[0, near]:.2f}, product of features and gradients) and "
        f"least like {models[far]} ({scores[0, far]:.2f} ± {stderr[0, far]:.2f})."
    )


def _parting(twins: dict[str, Comparison], tasks: dict[str, Comparison]) -> str:
    """Where another task sets a network further apart than another seed does."""
    same, _, _ = twins["features"].by_layer()
    other, error, _ = tasks["features"].by_layer()
    layers = tasks["features"].rows
    at = int(np.diff(same - other, prepend=0.0).argmax())  # where the gap to a twin grows most
    aims = [x["gradients"].by_layer()[0].mean() for x in (tasks, twins)]
    return (
        f"Ten digits and odd/even part at {layers[at]}: what twin-1 and odd-even see is alike to "
        f"{other[0]:.2f} at {layers[0]} but to {other[at]:.2f} ± {error[at]:.2f} at {layers[at]}, "
        f"where twins keep {same[at]:.2f}; what they want (gradients) is alike to {aims[0]:.2f}, "
        f"for twins {aims[1]:.2f}."
    )


def _copies(nets: list[Network], reps: dict[str, Representation], out: Path) -> str:
    """What features and gradients say of copies that were tuned, rounded or pruned."""
    names = [name for name in reps if name not in ("twin-1", "twin-3")]
    means = {}
    for kernel in ("features", "gradients"):
        pairs = [compare(reps["twin-1"], reps[name], kernel=kernel) for name in names]
        layers = [pair.by_layer() for pair in pairs]
        means[kernel] = np.array(
            [[value.mean(), np.sqrt((error**2).mean())] for value, error, _ in layers]
        )
    order = np.argsort(-means["gradients"][:, 0])
    figure = plot.figure(8, 3.8)
    axes = figure.subplots()
    for offset, (kernel, values) in zip((-0.2, 0.2), means.items(), strict=True):
        axes.bar(
            np.arange(len(names)) + offset,
            values[order, 0],
            0.38,
            yerr=2 * values[order, 1],
            label=f"{kernel} ({'centred' if kernel == 'features' else 'plain'} CKA)",
            color=("#00204c" if kernel == "features" else "#c8b866"),
            error_kw={"lw": 1, "capsize": 2},
        )
    axes.set_xticks(range(len(names)), [names[i] for i in order], rotation=20, ha="right")
    axes.set(ylim=(0, 1.02), ylabel="alike to twin-1, mean over layers")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    figure.savefig(out / "copies.png", dpi=150)
    at = names.index("twin-1-pruned")
    right = {net.name: net.accuracy for net in nets}
    lost = right["twin-1"] - right["twin-1-pruned"]
    return (
        f"Removing half of twin-1's weights leaves its features at {means['features'][at, 0]:.2f} "
        f"of the original but its gradients at {means['gradients'][at, 0]:.2f}, and costs "
        f"{100 * lost:.1f} points of accuracy: gradients see the damage that features hide."
        if means["gradients"][at, 0] < means["features"][at, 0]
        else f"Removing half of twin-1's weights leaves features at {means['features'][at, 0]:.2f} "
        f"and gradients at {means['gradients'][at, 0]:.2f}."
    )


def _adapting(own: Representation, elsewhere: dict[str, Representation], out: Path) -> str:
    """To which data twin-1 would have to adapt most, by the norm of its mean embedding."""
    results = {"its own": adaptation(own)}
    results |= {name: adaptation(rep) for name, rep in elsewhere.items()}
    first, *others = results.values()
    first.plot(*others).savefig(out / "adaptation.png", dpi=150)
    tables = {name: result.to_dict() for name, result in results.items()}
    last = {name: table["mean_embedding"][-1] or 0.0 for name, table in tables.items()}
    error = {name: table["mean_embedding_stderr"][-1] or 0.0 for name, table in tables.items()}
    most = max(last, key=lambda name: last[name])
    listed = ", ".join(f"{last[name]:.2f} ± {error[name]:.2f} on {name} digits" for name in last)
    return f"twin-1 must adapt most to {most} digits: ‖μ‖ at its last layer is {listed}."


# -- what to do next ----------------------------------------------------------------------------


def _networks_file() -> str:
    """A file that builds the demo's networks, for `--model networks.py:ten_digits`."""
    body = inspect.getsource(DigitNet)
    return (
        '"""The networks of the demo, and the images that none of them saw in training."""\n\n'
        "from sklearn.datasets import load_digits\nfrom torch import Tensor, nn, tensor\n\n\n"
        f"{body}\n\ndef ten_digits() -> DigitNet:\n    return DigitNet(10)\n\n\n"
        "def odd_even() -> DigitNet:\n    return DigitNet(2)\n\n\n"
        "def unseen() -> Tensor:\n"
        f"    return tensor(load_digits().images[{TRAINED_ON}:]).float()[:, None] / 16\n"
    )


def _readme(nets: list[Network], findings: list[str]) -> str:
    """The demo in words, commands and Python."""
    lines = ["# What this folder shows", ""]
    lines += [f"- {sentence}" for sentence in findings]
    lines += ["", "| network | what it is | right on unseen images |", "|---|---|---|"]
    lines += [f"| {n.name} | {n.story} | {n.accuracy:.1%} |" for n in nets]
    lines += ["", "## The same from the command line", "", "Run these in this folder:", "", "```sh"]
    for net in nets:
        build = "odd_even" if net.classes == 2 else "ten_digits"
        lines.append(
            f"resemblance record --model networks.py:{build} --weights {net.name}.safetensors "
            f"--data networks.py:unseen --data-id 'unseen digits' -o {net.name}.rsm"
        )
    lines += [
        "resemblance compare twin-1.rsm twin-2.rsm --kernel features --png twins.png",
        "resemblance compare twin-1.rsm odd-even.rsm --kernel features --png tasks.png",
        "resemblance compare twin-1.rsm twin-1-pruned.rsm --kernel gradients",
        "resemblance adaptation twin-1.rsm twin-1-on-turned.rsm twin-1-on-negative.rsm",
        f"resemblance report {' '.join(n.name + '.rsm' for n in nets)} -o report.html",
        "```",
        "",
        "## The same from Python",
        "",
        "```python",
        "import resemblance as rs",
        "",
        'twin, other = rs.load("twin-1.rsm"), rs.load("odd-even.rsm")',
        "comparison = rs.compare(twin, other)",
        "print(comparison.summary())",
        'comparison.plot().savefig("product.png")',
        'print(rs.compare(twin, other, kernel="features").scores)',
        "```",
        "",
    ]
    return "\n".join(lines)
