"""Candidate networks: collected from a zoo, a dict or a file, loaded, and run once on the query.

A zoo holds recordings, not networks. `models` says which network an entry is. The address that a
recording names is loaded only if `trust` repeats it verbatim, since an address may be code.

On the command line networks are named in FILE.toml, or by FILE.py:FUNCTION that returns a dict:

    [models]
    resnet = "timm:resnet18"
    mine = { model = "nets.py:small", weights = "small.safetensors" }

Such a file is written by the user and loaded; what a zoo says is not. `run_candidate` makes one
forward pass, from which all scores are computed.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._data.load_data import call_user_function
from .._models.hashes import hash_all_weights
from .._models.layer_outputs import Pool
from .._models.loading import load_model
from .._models.logits import LogitsReader
from .._models.run import unwrap_runnable
from .._ops.devices import check_device
from ..analysis.layer_vectors import PassConfig, Vectors, gather_vectors
from ..errors import DataError, FormatError, MismatchError, first_line
from ..zoo.entry import Entry
from ..zoo.zoo import Zoo
from .query_samples import Query

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


NetworkFactory = Callable[[], nn.Module]
_TOML_EXAMPLE = 'expected a table [models] with lines such as resnet = "timm:resnet18"'


def networks_from_file(spec: str, *, device: str = "") -> dict[str, NetworkFactory]:
    """What makes each network that a file names, on a device; a GPU if there is one."""
    found = _from_function(spec) if ".py:" in spec else _from_toml(Path(spec))
    return {name: on_device(make, device) for name, make in found.items()}


def loader_for_address(text: str) -> NetworkFactory:
    """What loads a network from an address, as a recording writes it."""
    model, _, weights = text.partition(" --weights ")
    return partial(load_model, model, weights=weights or None)


def on_device(make: NetworkFactory, device: str = "") -> NetworkFactory:
    """What makes a network on a device, which must be there; a GPU if there is one."""
    there = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return lambda: make().to(there)


def _from_function(spec: str) -> dict[str, NetworkFactory]:
    found = call_user_function(spec)
    if not isinstance(found, Mapping) or not found:
        raise DataError(
            f"{spec} returned {type(found).__name__}; expected a dict of networks by name, or of "
            "functions that build them"
        )
    return {str(name): partial(_as_module, spec, name, one) for name, one in found.items()}


def _as_module(spec: str, name: str, network: Any) -> nn.Module:
    made = network if isinstance(network, nn.Module) or not callable(network) else network()
    if not isinstance(made, nn.Module):
        raise DataError(f"{spec} has {type(made).__name__} for {name!r}; expected a network")
    return made


def _from_toml(path: Path) -> dict[str, NetworkFactory]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"no file at {path}; {_TOML_EXAMPLE}, or FILE.py:FUNCTION") from None
    except (OSError, ValueError) as error:
        said = first_line(error)
        raise FormatError(f"{path} cannot be read as TOML ({said}); {_TOML_EXAMPLE}") from None
    models = content.get("models")
    if not isinstance(models, dict) or not models:
        raise FormatError(f"{path} names no networks; {_TOML_EXAMPLE}")
    return {name: _from_toml_value(path, name, value) for name, value in models.items()}


def _from_toml_value(path: Path, name: str, value: Any) -> NetworkFactory:
    if isinstance(value, str):
        return loader_for_address(value)
    known = {"model", "weights", "pretrained"}
    if not isinstance(value, dict) or not isinstance(value.get("model"), str) or set(value) - known:
        raise FormatError(
            f"{path}: expected an address for {name!r}, or a table of model, weights and "
            f"pretrained; found {value!r}"
        )
    return partial(
        load_model,
        value["model"],
        weights=value.get("weights"),
        pretrained=bool(value.get("pretrained", False)),
    )


Network = nn.Module | Callable[[], nn.Module] | str  # itself, what makes it, or an address
Models = Mapping[str, Network] | Callable[[Entry], "Network | None"]
NetworkSource = Zoo | str | os.PathLike[str] | Mapping[str, Network]


@dataclass(frozen=True)
class Candidate:
    """A network that can be run, under the name it is shown by."""

    name: str
    network: Network
    entry: Entry | None = None  # in the zoo

    def load(self) -> nn.Module:
        """The network, which must be the one that was recorded."""
        network = self.network
        if isinstance(network, str):
            network = on_device(loader_for_address(network))
        if not isinstance(network, nn.Module) and callable(network):
            network = network()
        model = unwrap_runnable(network)
        expected = None if self.entry is None else self.entry.weights
        if expected is not None and hash_all_weights(model) != expected:
            raise MismatchError(
                f"the network passed for {self.name!r} has different weights than the recorded "
                "one; pass that network, in the precision it was recorded in"
            )
        return model


@dataclass(frozen=True)
class ExcludedCandidate:
    """A network that was not run, or whose run failed, and why."""

    name: str
    why: str


Candidates = tuple[list[Candidate], list[ExcludedCandidate]]  # who takes part, and who does not


def collect_candidates(
    zoo: Zoo | Mapping[str, Network], models: Models | None = None, trust: Collection[str] = ()
) -> Candidates:
    """The candidates of a zoo, or of a plain mapping of names to networks.

    Where `trust` is a dict of addresses, it says what loads each.
    """
    if isinstance(zoo, Mapping):
        if models is not None:
            raise DataError("`models` applies to a zoo only; a dict already names its networks")
        if not zoo:
            raise DataError("expected networks by name, found an empty dict")
        return [Candidate(name, network) for name, network in zoo.items()], []
    if not isinstance(zoo, Zoo):
        raise DataError(
            f"expected a Zoo, its folder or a dict of networks by name, found {type(zoo).__name__}"
        )
    entries = list(zoo)
    if not entries:
        raise DataError("the zoo has no entries; add recordings with Zoo.add, or pass a dict")
    if isinstance(trust, str):
        trust = (trust,)
    if not (models is None or isinstance(models, Mapping) or callable(models)):
        raise DataError(
            "`models` must be a dict of networks by name or id, or a function of an entry; found "
            f"{type(models).__name__}"
        )
    by_id: dict[str, Network] = {}
    if isinstance(models, Mapping):
        by_id = {_find_entry(zoo, key).id: network for key, network in models.items()}
    candidates, left_out = list[Candidate](), list[ExcludedCandidate]()
    weights: set[str | None] = set()  # a network may have been recorded on several probes
    references = {entry.trained_on for entry in entries}
    for entry in entries:
        if entry.weights is not None and entry.weights in weights:
            continue
        network = models(entry) if callable(models) else by_id.get(entry.id)
        if network is None and entry.address is not None and entry.address in trust:
            network = trust[entry.address] if isinstance(trust, Mapping) else entry.address
        if network is not None:
            weights.add(entry.weights)
            candidates.append(Candidate(entry.name, network, entry))
        elif entry.id not in references:  # which are data of others, seen by a reference model
            left_out.append(ExcludedCandidate(entry.name, _why_excluded(entry, models)))
    names = Counter(x.name for x in candidates)
    for i, x in enumerate(candidates):
        if names[x.name] > 1 and x.entry is not None:
            candidates[i] = replace(x, name=f"{x.name} ({x.entry.id[:8]})")
    return candidates, left_out


def _why_excluded(entry: Entry, models: Models | None) -> str:
    said = "no network was passed for it" if models is None else "models has no network for it"
    if entry.address is None:
        return said
    return f"{said}, and its address {entry.address!r} is loaded only if listed in `trust`"


def _find_entry(zoo: Zoo, key: str) -> Entry:
    """The entry of a name or an id; of several recordings of one network, the first."""
    found = zoo.store.matching(key)
    same = len({entry.weights or entry.id for entry in found}) == 1
    return found[0] if same else zoo.entry(key)  # which says what is wrong


MAX_WIDTH = 4096  # to which wider layers are folded


@dataclass(frozen=True)
class CandidatePass:
    """What one pass showed: each layer's vectors in the order of `positions`."""

    layers: dict[str, Vectors]  # in order of execution, each (n, d)
    positions: np.ndarray  # (n,) of the samples in the query
    logits: Tensor | None  # (n, Z), None for a model that predicts no single class
    parameters: int


def run_candidate(
    model: nn.Module,
    query: Query,
    *,
    layers: str | Sequence[str] = "auto",
    pool: Pool = "flatten",
    logits: LogitsReader | None = None,
    width: int | None = MAX_WIDTH,
    seed: int = 0,
    batch_size: int = 128,
) -> CandidatePass:
    """Run a candidate once; it is left as it was.

    Cost: one forward pass, and n × d floats a layer.
    """
    reader = logits or LogitsReader()
    run = PassConfig(
        ("features",), pool, logits=reader, max_dim=width, seed=seed, batch_size=batch_size
    )
    positions: list[np.ndarray] = []
    seen: list[Tensor] = []
    vectors = gather_vectors(
        model,
        query.samples,
        layers,
        run,
        lambda indices, _: positions.append(indices),
        see=None if reader.independent else lambda z: seen.append(z.detach().float().cpu()),
    )
    return CandidatePass(
        vectors,
        np.concatenate(positions),
        torch.cat(seen) if seen else None,
        sum(p.numel() for p in model.parameters()),
    )
