"""Exchange blocks between two models: run one network with some blocks of the other.

A block is a module that both models have under one name, once what wrappers add is taken off it
(`strip_wrapper_prefixes`): a layer, a residual block, a LoRA adapter around a layer, an int8 layer.
It is exchanged by putting the other model's module in its place, and put back when the block of
code ends, also after an exception. No weight is copied or moved. Where the two models differ in
device or dtype, hooks convert what an exchanged block is given and what it returns.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._data.batches import tree_map
from ..errors import LayerError, first_line
from .auto_layers import repeated_blocks
from .layer_patterns import select_layers
from .trace import Call, modules_by_name
from .wrappers import input_device, is_leaf, storage_id, strip_wrapper_prefixes

Groups = str | Sequence[str]
Place = tuple[nn.Module, str]  # the module around a block, and the block's name in it


def choose_blocks(model: nn.Module, groups: Groups, calls: Sequence[Call]) -> list[str]:
    """The names of the blocks to exchange, in order of execution; none is inside of another.

    For `"auto"`: the repeated blocks and, beside them, the outermost modules with weights that
    contain no block, such as an embedding or a head. A network without repeated blocks is taken
    layer by layer.
    """
    if groups != "auto":
        taps = select_layers(model, groups, calls)
        if inputs := [tap.name for tap in taps if tap.is_input]:
            raise LayerError(
                f"expected modules to exchange, found the input of one, {inputs[0]!r}; omit `:in`"
            )
        names = list(dict.fromkeys(tap.module for tap in taps))
        for name in names:
            if inside := next((other for other in names if other.startswith(f"{name}.")), None):
                raise LayerError(
                    f"{inside!r} is inside {name!r}, and both are in `groups`; remove one"
                )
        return names
    blocks, modules = repeated_blocks(calls), modules_by_name(model)
    around = {name for block in blocks for name in _prefixes(block)}
    began = {call.module: call.began for call in reversed(calls)}
    for name in sorted(began, key=lambda name: (began[name], name)):
        module = modules.get(name)
        if module is None or name in around or any(x in blocks for x in (name, *_prefixes(name))):
            continue
        if (around or is_leaf(module)) and _has_state(module):
            blocks.append(name)
    if not blocks:
        raise LayerError("expected a model with weights; found no layer that has any")
    return sorted(blocks, key=lambda name: began[name])


def _prefixes(name: str) -> list[str]:
    """The names of the modules around a module, the model itself left out."""
    return [name[:i] for i, letter in enumerate(name) if letter == "."]


def _has_state(module: nn.Module) -> bool:
    return bool(module.state_dict()) or any(True for _ in module.buffers())


class BlockExchange:
    """The blocks that two models have in common, and the context managers that exchange them.

    Args:
        base: one model, in evaluation mode.
        copy: the other.
        names: the blocks to exchange, as they are called in `base`.

    Attributes:
        names: the blocks that both have, without what wrappers add to their names.
        excluded: blocks that cannot be exchanged, and why.
    """

    def __init__(self, base: nn.Module, copy: nn.Module, names: Iterable[str]) -> None:
        self.base, self.copy = base, copy
        self._places = {id(model): _places_by_name(model) for model in (base, copy)}
        self.excluded: dict[str, str] = {}
        self._aliases: dict[str, list[str]] = {}
        ours, theirs = (self._places[id(model)] for model in (base, copy))
        same: defaultdict[int, list[str]] = defaultdict(list)
        for name, place in ours.items():
            same[id(_module_at(place))].append(name)
        for name in map(strip_wrapper_prefixes, names):
            if missing := [x for x in same[id(_module_at(ours[name]))] if x not in theirs]:
                self.excluded[name] = f"the copy has no module {missing[0]!r}"
            else:
                self._aliases[name] = same[id(_module_at(ours[name]))]

    @property
    def names(self) -> list[str]:
        return list(self._aliases)

    @contextlib.contextmanager
    def inserted(self, names: Iterable[str], into: nn.Module) -> Iterator[nn.Module]:
        """One of the two models with some blocks of the other, until the end of the block.

        Args:
            names: the blocks.
            into: `base` or `copy`, whose modules are replaced.
        """
        donor = self.copy if into is self.base else self.base
        with contextlib.ExitStack() as undo:
            for name in names:
                for alias in self._aliases[name]:
                    around, key = self._places[id(into)][alias]
                    old, new = around._modules[key], _module_at(self._places[id(donor)][alias])
                    assert old is not None
                    undo.enter_context(
                        _converted(new, _placement(new, donor), _placement(old, into))
                    )
                    undo.callback(around._modules.__setitem__, key, old)
                    around._modules[key] = new
            yield into

    def unchanged(self, name: str) -> bool:
        """Whether a block is the same in both models, bit for bit, so that nothing is exchanged."""
        ours, theirs = (self._places[id(model)] for model in (self.base, self.copy))
        return all(
            _same_module(_module_at(ours[x]), _module_at(theirs[x])) for x in self._aliases[name]
        )

    def try_each(self, run: Callable[[nn.Module], Any]) -> None:
        """Exclude the blocks with which a trial `run` fails, and those that never run.

        Args:
            run: runs a model on a few samples.
        """
        for name in self.names:
            for into, donor in ((self.base, self.copy), (self.copy, self.base)):
                module = _module_at(self._places[id(donor)][name])
                ran: list[bool] = []
                hook = module.register_forward_pre_hook(lambda *_, ran=ran: ran.append(True))
                try:
                    with self.inserted([name], into):
                        run(into)
                except (torch.OutOfMemoryError, MemoryError):
                    raise
                except Exception as error:
                    why = f"the network with it alone does not run ({first_line(error)})"
                else:
                    why = "" if ran else "the network does not call it through its module tree"
                finally:
                    hook.remove()
                if why:
                    self.excluded[name] = why
                    del self._aliases[name]
                    break

    def shared_weights(self) -> list[str]:
        """Weights that a block shares with what is outside of it, as `a.weight = b.weight`."""
        found: dict[str, None] = {}
        for model in (self.base, self.copy):
            owners: defaultdict[int, dict[str, str]] = defaultdict(dict)  # by block, a weight
            for name, weight in model.named_parameters(remove_duplicate=False):
                name = strip_wrapper_prefixes(name)
                inside = (x for x in self._aliases if name.startswith(f"{x}."))
                if (memory := storage_id(weight)) is not None and not weight.is_meta:
                    owners[memory].setdefault(next(inside, ""), name)
            groups = (each for each in owners.values() if len(each) > 1)
            found |= dict.fromkeys(" = ".join(each.values()) for each in groups)
        return list(found)

    def weights_outside(self) -> list[str]:
        """Parameters that differ between the models and are in none of the blocks."""
        ours, theirs = (
            {strip_wrapper_prefixes(name): p for name, p in model.named_parameters()}
            for model in (self.base, self.copy)
        )
        known = tuple(f"{name}." for each in self._aliases.values() for name in each)
        return [
            name
            for name, weight in ours.items()
            if not name.startswith(known) and name in theirs and not _equal(weight, theirs[name])
        ]


def _places_by_name(model: nn.Module) -> dict[str, Place]:
    """Where each module is; of a layer and the wrapper around it, the wrapper."""
    found: dict[str, Place] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for key, child in module._modules.items():
            if child is not None:
                name = strip_wrapper_prefixes(f"{path}.{key}" if path else key)
                found.setdefault(name, (module, key))
    return found


def _module_at(place: Place) -> nn.Module:
    module = place[0]._modules[place[1]]
    assert module is not None
    return module


# -- devices and dtypes --------------------------------------------------------------------------

_Placement = tuple[torch.device | None, torch.dtype | None]


def _placement(module: nn.Module, model: nn.Module) -> _Placement:
    """Where a module runs, and the dtype of its weights; None where it has none of that kind."""
    dtypes = (weight.dtype for weight in module.parameters() if weight.is_floating_point())
    return input_device(module) or input_device(model), next(dtypes, None)


@contextlib.contextmanager
def _converted(module: nn.Module, own: _Placement, network: _Placement) -> Iterator[None]:
    """In the block, a module can be called with tensors of a network on a different device."""
    dtypes = (own[1], network[1]) if None not in (own[1], network[1]) else (None, None)
    if own[0] == network[0] and dtypes[0] == dtypes[1]:
        yield
        return
    enter, leave = (partial(_convert, x[0], y) for x, y in zip((own, network), dtypes, strict=True))

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map(enter, args), tree_map(enter, kwargs)

    def after(_: nn.Module, args: Any, output: Any) -> Any:
        return tree_map(leave, output)

    with contextlib.ExitStack() as undo:
        undo.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        undo.callback(module.register_forward_hook(after).remove)
        yield


def _convert(device: torch.device | None, dtype: torch.dtype | None, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(device=device, dtype=dtype if value.is_floating_point() else None)


# -- equal modules -------------------------------------------------------------------------------


_OF_ALL_MODULES = vars(nn.Module()).keys()  # attributes that torch gives to each


def _same_module(one: nn.Module, two: nn.Module) -> bool:
    """Whether two modules compute the same as far as is certain: classes, settings and weights."""
    ours, theirs = dict(one.named_modules()), dict(two.named_modules())
    if ours.keys() != theirs.keys():
        return False
    alike = all(_same_settings(module, theirs[name]) for name, module in ours.items())
    return alike and _same_tensors(one, two)


def _same_settings(one: nn.Module, two: nn.Module) -> bool:
    """Whether two modules are of one class, with equal attributes and no code put around them."""
    for module in (one, two):
        if module._forward_hooks or module._forward_pre_hooks:
            return False
    ours, theirs = (
        {k: x for k, x in vars(m).items() if k not in _OF_ALL_MODULES} for m in (one, two)
    )
    return (
        type(one) is type(two)
        and ours.keys() == theirs.keys()
        and all(
            x is theirs[key] or (not isinstance(x, Tensor) and (x == theirs[key]) is True)
            for key, x in ours.items()
        )
    )


def _same_tensors(one: nn.Module, two: nn.Module) -> bool:
    ours, theirs = ({**dict(x.named_parameters()), **dict(x.named_buffers())} for x in (one, two))
    if one.state_dict().keys() - ours.keys():  # packed weights, as of int8 layers
        return False
    return ours.keys() == theirs.keys() and all(_equal(ours[name], theirs[name]) for name in ours)


def _equal(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype or one.is_meta or two.is_meta:
        return False
    return torch.equal(one.detach(), two.detach().to(one.device))
