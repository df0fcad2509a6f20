"""`resemblance demo`: something true about real networks on real data, in about a minute.

The networks of `digit_networks` are trained, recorded, compared, and written up with the commands
that reproduce each step. Every sentence printed at the end is computed from what was measured. The
last one is the verdict of the `check` that would have caught the copy that lost most.
"""

from __future__ import annotations

import textwrap
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
from ..gate.judgement import check
from ..gate.verdict import Verdict
from ..recording.from_model import record
from ..representation.representation import Representation
from ..similarity.combinations import Kernel
from ..similarity.many_networks import compare_all
from ..similarity.same_predictions import behaviour, obstacle
from ..similarity.two_networks import compare
from ..views import figures as plot
from ..views.report_page import report
from . import copy_figure, folder
from .copy_figure import Beside
from .digit_networks import COUNT, TRAINED_ON, Network, networks

Reps = Mapping[str, Representation]
WIDTH = 80  # of the lines that are told
CHECK = """\
resemblance check twin-1.rsm twin-1-pruned.rsm \\
    --max-disagreement 0.02 --min gradients=0.8"""  # what `_checked` asks, for the command line


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
        nets = _trained(out, say)
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
            _other_task(reps, out),
            _adapting(reps["twin-1"], elsewhere, out),
            _copies(nets, reps, out),
        ]
        verdict = _checked(reps)
        report(list(reps.values()), out / "report.html", title="Nine small networks on digits")
        folder.write(out, nets, findings, CHECK, verdict)
    for sentence in findings:
        tell(say, sentence, "• ")
    say("")
    tell(say, f"{_asked(verdict)} In the demo's folder:")
    for line in CHECK.splitlines():
        say(f"    {line}")
    tell(say, f"{verdict.paragraph()} Exit status {verdict.exit_status}.")
    say("")
    say(f"Open {out / 'report.html'}; {out / 'README.md'} has the commands that made it.")


def _trained(out: Path, say: Callable[[str], None]) -> list[Network]:
    """Train the networks, write their weights, and say how often each is right."""
    say(f"Training {COUNT} small networks on scikit-learn's handwritten digits ...")
    with progress(None, COUNT, "training", "networks") as advance:
        nets = list(networks(advance))
    say("How many unseen images each gets right:")
    for net in nets:
        say(f"  {net.accuracy:6.1%}  {net.name:<14} {net.story}")
        state = {key: value.contiguous() for key, value in net.model.state_dict().items()}
        write_atomically(out / f"{net.name}.safetensors", to_safetensors(state))
    return nets


def tell(say: Callable[[str], None], sentence: str, mark: str = "") -> None:
    """Say a sentence in lines of `WIDTH`, a number and its error together."""
    kept = sentence.replace(" ± ", "\xa0±\xa0").replace(" %", "\xa0%")
    lines = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
    lines.subsequent_indent = " " * len(mark)
    for line in lines.wrap(mark + kept):
        say(line.replace("\xa0", " "))


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


def _other_task(reps: Reps, out: Path) -> str:
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
        f"Another task sets odd-even apart from twin-1 most of all at {here}: what they see is "
        f"alike to {alike[0]:.2f} at {first} but to {alike[at]:.2f} ± {error[at]:.2f} at {here}, "
        f"where twins keep {same[at]:.2f}; what they want (gradients) is alike to {aims:.2f}, "
        f"for twins {twins_aims:.2f}."
    )


def _copies(nets: Sequence[Network], reps: Reps, out: Path) -> str:
    """What features, gradients and predictions say of copies that were tuned, rounded or pruned."""
    twin = reps["twin-1"]
    beside = {
        name: Beside(
            name,
            _mean(reps, name, "features"),
            _mean(reps, name, "gradients"),
            None if obstacle(twin, rep) else behaviour(twin, rep),
        )
        for name, rep in reps.items()
        if name not in ("twin-1", "twin-3")
    }
    plot.save(copy_figure.drawn("twin-1", list(beside.values())), out / "copies.png")
    pruned, rounded = beside["twin-1-pruned"], beside["twin-1-int8"]
    seen, wanted = pruned.features[0], pruned.gradients[0]
    right = {net.name: net.accuracy for net in nets}
    lost = 100 * (right["twin-1"] - right["twin-1-pruned"])
    hidden = ": gradients see the damage that features hide" if wanted < seen else ""
    return (
        f"Removing half of twin-1's weights leaves features at {seen:.2f} and gradients at "
        f"{wanted:.2f} of the original. The copy predicts another digit for {_does(pruned)}, and "
        f"loses {lost:.1f} points of accuracy{hidden}. Rounding to 8 bits leaves gradients at "
        f"{rounded.gradients[0]:.2f}, and it predicts another digit for {_does(rounded)}."
    )


def _does(one: Beside) -> str:
    """What a copy does, in words: the share of other predictions and their divergence."""
    found = one.behaviour
    assert found is not None, "copies of twin-1 have its classes"
    share = f"{100 * found.disagreement:.1f} ± {100 * found.disagreement_stderr:.1f} % of"
    many = share if found.disagreement else f"none of {found.samples:,}"
    return f"{many} images (KL {found.kl:.2g} ± {found.kl_stderr:.1g} nats)"


def _checked(reps: Reps) -> Verdict:
    """The verdict on the pruned copy: few other predictions, and gradients like the original's."""
    twin, pruned = reps["twin-1"], reps["twin-1-pruned"]
    return check(twin, pruned, max_disagreement=0.02, min={"gradients": 0.8})


def _asked(verdict: Verdict) -> str:
    """The thresholds in words, and whether they keep the copy from being shipped."""
    caught = "would have caught" if verdict.status == "failed" else "does not catch"
    return (
        "A check that allows a copy another prediction for 2 % of images, and asks of its "
        f"gradients to be alike to 0.8 at every layer, {caught} the pruned one."
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
