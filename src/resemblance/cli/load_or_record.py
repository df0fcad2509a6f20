"""Networks given to `check` and `compare`: loaded from a file, or recorded if they are models.

Models are recorded with what the thresholds or kernels need and no more. If one of the two is a
file, the other is recorded with the settings of that file; otherwise the second model is recorded
with the settings of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import resemblance as rs

from ..errors import DataError, NoBackwardError, warn
from ..recording.config import RecordConfig
from .options import DEFAULT_RECORDING, RecordingOptions, record_options

if TYPE_CHECKING:
    from ..representation.representation import Representation
    from ..similarity.kernels import Kernel


@dataclass(frozen=True)
class NetworkArgument:
    """A network as the command line names it."""

    role: str  # base, copy, a or b: how its own options begin
    address: str
    weights: str | None = None
    dtype: str | None = None  # in place of that for all models

    @property
    def is_model(self) -> bool:
        """Whether it is a model to be recorded; else it is a file."""
        from .._models.loading import MODEL_PREFIXES, exported_format

        named = self.address.startswith(MODEL_PREFIXES) or ".py:" in self.address
        return named or exported_format(self.address) is not None


@dataclass(frozen=True)
class RecordingNeeds:
    """What recordings must hold to answer the question."""

    kernels: tuple[Kernel, ...] = ()
    gradients: bool = False  # also without a kernel of them, if the models have a backward pass
    buckets: bool = False
    same_layers: bool = True  # the second network is recorded at the layers of the first

    @property
    def kinds(self) -> set[str]:
        from ..similarity.kernels import required_kinds

        return {kind for kernel in self.kernels for kind in required_kinds(kernel)}

    @property
    def must_have_gradients(self) -> bool:
        return not self.kinds.isdisjoint(("gradients", "elementwise"))


def load_or_record(
    first: NetworkArgument,
    second: NetworkArgument,
    options: RecordingOptions,
    needs: RecordingNeeds,
) -> tuple[Representation, Representation]:
    """Both networks, each loaded from its file or recorded in one pass.

    Args:
        first: the base, or the network of the rows.
        second: the copy, or the network of the columns.
        options: how models are recorded.
        needs: what the recordings must hold.
    """
    from ..similarity.pairing import check_recorded

    _check_arguments(first, second, options, needs)
    files = {x.role: rs.load(x.address) for x in (first, second) if not x.is_model}
    for file in files.values():  # before a network is recorded
        for kernel in needs.kernels:
            check_recorded(file, file, kernel)
    one, two = files.get(first.role), files.get(second.role)
    if one is None:
        one = _record_like(first, options, needs, two, layers=None, full_outputs=two is None)
        if two is not None:
            _check_same_samples(two, one, options)
    if two is None:
        layers = one.layer_names if needs.same_layers else None
        how: dict[str, Any] = {"outputs_of": one, "full_outputs": first.role not in files}
        two = _record_like(second, options, needs, one, layers=layers, **how)
        _check_same_samples(one, two, options)
    return one, two


def _check_arguments(
    first: NetworkArgument,
    second: NetworkArgument,
    options: RecordingOptions,
    needs: RecordingNeeds,
) -> None:
    """Refuse what cannot be recorded, and options that have no effect or exclude one another."""
    for network in (first, second):
        for name in ("weights", "dtype"):
            if getattr(network, name) is not None and not network.is_model:
                raise DataError(
                    f"--{network.role}-{name} applies to models only, and {network.address} is a "
                    "recording; omit it, or pass the model instead"
                )
    models = [network for network in (first, second) if network.is_model]
    if models and options.data is None:
        raise DataError(
            f"{models[0].address} is a model, so --data is required to record it; add --data, or "
            "pass a recording (.rsm)"
        )
    if not models and options != DEFAULT_RECORDING:
        defaults = vars(DEFAULT_RECORDING)
        given = next(name for name, value in vars(options).items() if value != defaults[name])
        raise DataError(
            f"--{given.replace('_', '-')} applies to models only, and both networks are "
            "recordings; omit it"
        )
    if options.features_only and needs.must_have_gradients:
        raise DataError(
            "--features-only conflicts with the gradients requested; omit it, or request features "
            "only"
        )


def _record_like(
    network: NetworkArgument,
    options: RecordingOptions,
    needs: RecordingNeeds,
    like: Representation | None,
    *,
    layers: list[str] | None,
    outputs_of: Representation | None = None,
    full_outputs: bool = False,  # as both are in this process, divergences are then exact
) -> Representation:
    """A model recorded on the spot, with the settings of `like` if there is one."""
    from .._data.text import TextOptions
    from ..recording.record import NamedRecording, load_recording_data, record_named

    wanted = NamedRecording(
        network.address,
        options.data or "",
        network.weights,
        pretrained=options.pretrained and network.weights is None,
        size=options.size,
        raw=options.raw,
        limit=options.limit,
        text=TextOptions(options.length, tokenizer=options.tokenizer),
        device=options.device,
    )
    gradients = needs.must_have_gradients or (needs.gradients and not options.features_only)
    if like is not None and not like.settings.gradients:
        gradients = False
    own = {"dtype": network.dtype} if network.dtype else {}
    how: dict[str, Any] = {
        "layers": layers or "auto",
        "elementwise": "elementwise" in needs.kinds,
        "name": (network.weights or network.address) + "".join(f" ({x})" for x in own.values()),
        "outputs_of": None if outputs_of is None or outputs_of.outputs is None else outputs_of,
        **({} if needs.buckets else {"buckets": 0}),
        **({} if like is None else _settings_of(like, gradients=gradients)),
        **record_options(vars(options)),
        **own,
    }
    config, data = RecordConfig(**how | {"gradients": gradients}), load_recording_data(wanted)
    try:
        return record_named(wanted, data, config, full_outputs=full_outputs)
    except NoBackwardError as error:
        if needs.must_have_gradients:
            raise DataError(
                f"cannot record gradients of {network.address}: layer {error.layer!r} is quantised "
                "and has no backward pass. Use features or predictions instead"
            ) from error
        warn(
            f"{network.address} is recorded without gradients: its layer {error.layer!r} is "
            "quantised and has no backward pass"
        )
        config = replace(config, gradients=False)
        data = load_recording_data(wanted)
        return record_named(wanted, data, config, full_outputs=full_outputs)


def _settings_of(like: Representation, *, gradients: bool) -> dict[str, Any]:
    """The options that record a network so that it compares with a recording."""
    from .._models.logits import LOGITS_MODES
    from .._models.losses import SIGMOID_SUFFIX

    settings, read = like.settings, like.made.logits
    target = settings.target.removesuffix(SIGMOID_SUFFIX)
    if gradients and target not in ("tempered", "labels"):
        raise DataError(
            f"{like.name!r} was recorded with a custom loss function, {settings.target!r}, which "
            "the command line cannot reproduce; record the second network from Python too, and "
            "pass both files"
        )
    if read is not None and read.startswith("function"):
        raise DataError(
            f"{like.name!r} was recorded with a function that returns the logits, which the "
            "command line cannot reproduce; record the second network from Python too, and pass "
            "both files"
        )
    names = ("seed", "buckets", "per_sample", "block", "blocks", "pool", "unit", "tokens")
    options = {name: getattr(settings, name) for name in names}
    if gradients:
        options["target"] = target
        options |= {} if settings.beta is None else {"beta": settings.beta}
    if read in LOGITS_MODES:  # as it was asked for, and not as values suggested
        options["logits"] = read
    return {**options, "data_id": like.data.id}


def _check_same_samples(
    known: Representation, new: Representation, options: RecordingOptions
) -> None:
    """Refuse different samples under one name, which alone would pair them."""
    held = known.data.content, new.data.content
    if known.data.id is not None and None not in held and held[0] != held[1]:
        raise DataError(
            f"the samples of --data {options.data} differ from those that {known.name!r} was "
            f"recorded on ({known.data.id!r}). Use the same data, --limit, --size and --length, or "
            "record the copy with --data-id and pass both files"
        )
