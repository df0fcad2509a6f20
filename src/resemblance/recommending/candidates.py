"""Candidates: the networks that may be recommended, each with a way to get at it.

A zoo holds recordings, not networks. `models` says which network an entry is; the address that a
recording names is loaded only where `trust` repeats it word by word, as an address may be code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from .._model.model_pass import runnable
from .._model.weight_hash import of_all_weights
from ..errors import DataError, MismatchError, nearest
from ..zoo.collection import Zoo
from ..zoo.entry import Entry
from .model_files import address_of, placed

Network = nn.Module | Callable[[], nn.Module] | str  # itself, what makes it, or an address
Models = Mapping[str, Network] | Callable[[Entry], "Network | None"]
Collected = Zoo | str | os.PathLike[str] | Mapping[str, Network]


@dataclass(frozen=True)
class Candidate:
    """A network that can be run, under the name it is shown by."""

    name: str
    network: Network
    entry: Entry | None = None  # in the zoo

    def load(self) -> nn.Module:
        """The network, which must be the one that was recorded."""
        model = runnable(_made(self.network))
        expected = None if self.entry is None else self.entry.weights
        if expected is not None and of_all_weights(model) != expected:
            raise MismatchError(
                f"the network given for {self.name!r} has other weights than the one recorded; "
                "give that one, in the precision it was recorded in"
            )
        return model


def _made(network: Network) -> nn.Module:
    if isinstance(network, str):
        return placed(address_of(network))()
    if not isinstance(network, nn.Module) and callable(network):
        return network()
    return network


@dataclass(frozen=True)
class LeftOut:
    """A network that was not run, or whose run failed, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Field:
    """Who takes part, and who does not."""

    candidates: list[Candidate]
    left_out: list[LeftOut] = field(default_factory=list)


def gathered(zoo: Collected, models: Models | None = None, trust: Collection[str] = ()) -> Field:
    """The candidates of a zoo, of the folder of one, or of a plain mapping of names to networks.

    Where `trust` is a dict of addresses, it says what loads each.
    """
    if isinstance(trust, str):
        trust = (trust,)
    if isinstance(zoo, Mapping):
        return _plain(zoo, models)
    if not isinstance(zoo, Zoo):
        if not isinstance(zoo, str | os.PathLike):
            raise DataError(
                f"expected a Zoo, its folder or a dict of networks by name, found "
                f"{type(zoo).__name__}"
            )
        with Zoo(zoo, create=False) as opened:
            return _of_entries(list(opened), models, trust)
    return _of_entries(list(zoo), models, trust)


def _plain(networks: Mapping[str, Network], models: Models | None) -> Field:
    if models is not None:
        raise DataError("expected models= with a zoo alone; a dict names its networks itself")
    if not networks:
        raise DataError("expected networks by name, found an empty dict; give one or more")
    return Field([Candidate(name, network) for name, network in networks.items()])


def _of_entries(entries: Sequence[Entry], models: Models | None, trust: Collection[str]) -> Field:
    if not entries:
        raise DataError("the zoo has no entries; add recordings with Zoo.add, or pass a dict")
    find = _finder(entries, models)
    found, left_out = Field([]), []
    weights: set[str] = set()  # of a network that was recorded on several probes
    references = {entry.trained_on for entry in entries}
    for entry in entries:
        if entry.weights is not None and entry.weights in weights:
            continue
        network = find(entry)
        if network is None and entry.address is not None and entry.address in trust:
            network = trust[entry.address] if isinstance(trust, Mapping) else entry.address
        if network is None:
            if entry.id not in references:  # which are data of others, seen by a reference model
                left_out.append(LeftOut(entry.name, _why(entry, models)))
            continue
        if entry.weights is not None:
            weights.add(entry.weights)
        found.candidates.append(Candidate(entry.name, network, entry))
    return Field(_told_apart(found.candidates), left_out)


def _why(entry: Entry, models: Models | None) -> str:
    said = "no network is given for it" if models is None else "models has no network for it"
    if entry.address is None:
        return said
    return f"{said}, and its address {entry.address!r} is run only if trust repeats it"


def _finder(entries: Sequence[Entry], models: Models | None) -> Callable[[Entry], Network | None]:
    if models is None:
        return lambda entry: None
    if isinstance(models, Mapping):
        by_id = {_named(entries, key).id: network for key, network in models.items()}
        return lambda entry: by_id.get(entry.id)
    if not callable(models):
        raise DataError(
            "models must be a dict of networks by name or id, or a function of an entry; found "
            f"{type(models).__name__}"
        )
    return models


def _named(entries: Sequence[Entry], key: str) -> Entry:
    """The entry of a name, an id or the beginning of one."""
    found = [e for e in entries if e.name == key] or [
        e for e in entries if len(key) >= 6 and e.id.startswith(key)
    ]
    if not found:
        known = nearest(key, [entry.name for entry in entries])
        raise DataError(f"models names {key!r}, of which the zoo has no entry; nearest: {known}")
    if len({entry.weights or entry.id for entry in found}) > 1:
        some = ", ".join(entry.id[:12] for entry in found[:5])
        raise DataError(
            f"models names {key!r}, of which the zoo has {len(found)} entries; name one by its id: "
            f"{some}"
        )
    return found[0]


def _told_apart(candidates: Sequence[Candidate]) -> list[Candidate]:
    """With the beginning of its id after a name that several have."""
    names = [candidate.name for candidate in candidates]
    return [
        c
        if names.count(c.name) == 1 or c.entry is None
        else Candidate(f"{c.name} ({c.entry.id[:8]})", c.network, c.entry)
        for c in candidates
    ]


def linked(candidate: Candidate) -> str | None:
    """The id of a recording of a reference model on what the candidate was trained on."""
    return None if candidate.entry is None else candidate.entry.trained_on
