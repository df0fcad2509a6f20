"""The protocol of networks that an engine other than PyTorch runs.

A `Runtime` is a module whose `forward` asks the engine for its outputs. Which layers it has is a
list of `LayerCall`s: the module each was in PyTorch, and the tensors of the engine that it was
given and gave. From these the Runtime builds modules of those names. Whenever one of them has a
hook, the engine is asked for its tensors, and the modules are called with them in the order of
execution. Everything that reads a PyTorch network through hooks (choosing layers, recording,
`resemblance layers`) therefore works unchanged.

Another runtime is one file: a subclass that passes its layers to `Runtime.__init__` and defines
`run` and `read`, and an address in `_models/loading.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor, nn

T = TypeVar("T")

FUSED = ".fused"  # ends the name of a layer whose output is that of it and of layers after it
OUTPUTS = "outputs"  # the layer that stands for what the network returns


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer: what it was in PyTorch, and the engine's tensors before and after it.

    Calls are nested: one is inside another if it begins after it and ends before it.
    """

    name: str  # of the module, "layer1.0"
    number: int  # 1 the first time it runs
    kind: type[nn.Module]  # its class
    given: str | None  # the engine's name of what it was given; None: not known
    gave: str
    began: int
    ended: int
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    attributes: Mapping[str, int] = field(default_factory=dict)  # in_features and the like


class Runtime(nn.Module):
    """A network that another engine runs, as a PyTorch module without gradients.

    Args:
        source: the file or the object that it is, for messages.
        layers: the calls of its layers.
        lost: layers of the PyTorch network whose outputs the engine does not compute.
        weights: weights that are of no layer in particular.
    """

    name: str | None = None  # that a recording takes
    mixes_samples: str | None = None  # why results depend on which samples share a batch

    def __init__(
        self,
        source: str,
        layers: Sequence[LayerCall],
        *,
        lost: Sequence[str] = (),
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.source, self.lost = source, tuple(lost)
        self._layers = _nested(layers)
        for call in layers:
            module = _place(self, call.name, call.kind)
            vars(module).update(call.attributes)
            _add_weights(module, call.weights)
        _add_weights(self, weights or {})

    @abstractmethod
    def run(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What the network returns for a batch, given by position or by name."""

    @abstractmethod
    def read(
        self, inputs: Sequence[Any], named: Mapping[str, Any], names: Collection[str]
    ) -> dict[str, Tensor]:
        """The tensors of these names for the same batch, which was run just before."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        outputs = self.run(inputs, named)
        modules = dict(self.named_modules())
        wanted: set[str] = set()
        for call in _flat(self._layers):
            module = modules[call.call.name]
            wanted |= {call.call.gave} if module._forward_hooks else set()
            wanted |= {call.call.given or ""} if module._forward_pre_hooks else set()
        wanted.discard("")
        if wanted:
            _play(self._layers, modules, self.read(inputs, named, wanted))
        return outputs

    def _apply(self: T, fn: Any, recurse: bool = True) -> T:
        """Stay on the CPU in its own precision: the engine has its own copy of the weights."""
        return self


@dataclass(frozen=True)
class _Nested:
    call: LayerCall
    inside: list[_Nested] = field(default_factory=list)


def _nested(calls: Sequence[LayerCall]) -> list[_Nested]:
    """The outermost calls in the order in which they end, each with those inside it."""
    outermost: list[_Nested] = []
    for call in sorted(calls, key=lambda c: (c.ended, -c.began)):
        begun = [each for each in outermost if each.call.began >= call.began]
        outermost = [each for each in outermost if each.call.began < call.began]
        outermost.append(_Nested(call, begun))
    return outermost


def _flat(calls: Sequence[_Nested]) -> list[_Nested]:
    return [each for call in calls for each in (call, *_flat(call.inside))]


def _play(
    calls: Sequence[_Nested], modules: Mapping[str, nn.Module], values: Mapping[str, Tensor]
) -> None:
    """Call each module that has hooks with what its layer was given, and return what it gave."""
    for each in calls:
        module = modules[each.call.name]
        if not (module._forward_hooks or module._forward_pre_hooks):
            _play(each.inside, modules, values)
            continue

        def forward(*_: Any, each: _Nested = each) -> Any:
            _play(each.inside, modules, values)
            return values.get(each.call.gave)

        given = values.get(each.call.given or "")
        vars(module)["forward"] = forward
        try:
            module(*([] if given is None else [given]))
        finally:
            del vars(module)["forward"]


def _place(root: nn.Module, name: str, kind: type[nn.Module]) -> nn.Module:
    """The module of a name; it and those around it are made where there are none."""
    module = root
    parts = name.split(".")
    for i, part in enumerate(parts):
        own = kind if i == len(parts) - 1 else nn.ModuleList
        held = module._modules.get(part)
        if held is None or (own is not nn.ModuleList and type(held) is nn.ModuleList):
            made = own.__new__(own)
            nn.Module.__init__(made)
            made._modules.update({} if held is None else held._modules)
            module._modules[part] = made
        module = module._modules[part]  # type: ignore[assignment]
    return module


def _add_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        parameter = nn.Parameter(weight, requires_grad=False)
        module._parameters[name.replace(".", " ")] = parameter
