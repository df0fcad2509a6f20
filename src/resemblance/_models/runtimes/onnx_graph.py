"""Find the calls of PyTorch modules in an ONNX graph.

Where a node came from is read from what torch's exporters leave behind, in this order: the module
scopes in a node's metadata, the path in its name (`/layer1/layer1.0/conv1/Conv`), and the names of
its weights (`layer1.0.conv1.weight`). A node that quantisation or fusion made without any of these
belongs to the bias that it feeds, or else to the module around the layer before it.

A layer's output is the one tensor of its nodes that is used outside of it. Masks and positions do
not count, which networks compute once in their first layer: tensors that no weight matrix has gone
into, where others leave as well. A layer from which several tensors leave, or none, is lost, and so
are layers that were folded into others. Where a
batch norm or a ReLU was folded into a layer, its output is no longer what that layer gave in
PyTorch, and its name ends with `.fused`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .runtime import FUSED, LayerCall

_DEQUANTISE, _QUANTISE = "DequantizeLinear", "QuantizeLinear"
_ALIASES = {_QUANTISE, _DEQUANTISE, "DynamicQuantizeLinear", "Identity"}
# operators that hand on values as they are, also quantised ones
_REARRANGE = {
    "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "Gather", "Slice",
    "Split", "Expand", "Relu", "Clip",
}  # fmt: skip
_MULTIPLY = {
    "Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "Gemm", "QGemm", "MatMul",
    "MatMulInteger", "QLinearMatMul",
}  # fmt: skip
_FINISH = {"Add", "QLinearAdd", "Cast", "Mul"}  # what follows a quantised product in its layer
_KINDS = {
    **dict.fromkeys(("Gemm", "QGemm", "MatMul", "MatMulInteger", "QLinearMatMul"), nn.Linear),
    "Gather": nn.Embedding,
    "Relu": nn.ReLU,
    "LayerNormalization": nn.LayerNorm,
    "BatchNormalization": nn.BatchNorm2d,
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
}
_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
_QUANTISED = re.compile(r"(_quantized|_DequantizeLinear_Output)+$")
_OF_SCALES = re.compile(r"_(scale|zero_point)$")
_FOLDED = re.compile(r"^ConvBnFusion_[WB]_")  # what onnxruntime calls weights with a norm in them
_FOLDED_BIAS = ".weight_bias"  # what torch's exporter calls the bias of such a layer
_MAX_DEPTH, _MAX_NAME = 64, 512  # of modules, and of their names, in files that can be trusted


@dataclass(eq=False)
class _Node:
    """A node that computes activations."""

    at: int  # its place in the order of execution
    op: str
    name: str
    inputs: list[str]  # activations, under the names of those that they are copies of
    outputs: list[str]
    weights: list[str]  # constants, under the names of the initializers that they come from
    first: str  # what its first input is a copy of
    scopes: list[str] = field(default_factory=list)  # modules around it, outermost first
    named: bool = False  # its scopes were found in the file
    weighted: bool = False  # a weight matrix has gone into its outputs


@dataclass(frozen=True)
class _Found:
    """A call of a module, as nodes."""

    scope: str  # in the graph
    module: str
    number: int
    has_parts: bool
    nodes: list[_Node]
    given: str | None
    gave: str


@dataclass(frozen=True)
class Quantised:
    """A tensor of integers, with the names of its scale and zero point."""

    name: str
    scale: str
    zero_point: str


@dataclass(frozen=True)
class FoundLayers:
    """The layers of a graph, and those that it must have had and does not compute."""

    calls: list[LayerCall]
    lost: list[str]


class OnnxGraph:
    """An ONNX graph as data flow between modules.

    Args:
        proto: the model, with or without its weights, functions inlined.
        weights: the values of initializers, by name.
    """

    def __init__(self, proto: Any, weights: Mapping[str, np.ndarray]) -> None:
        graph = proto.graph
        self.weights = weights
        self.owned: set[str] = set()  # the initializers that are of some layer
        self.inputs = [x.name for x in graph.input if x.name not in _initializer_names(graph)]
        self.outputs = [x.name for x in graph.output]
        self._constants = {name: name for name in _initializer_names(graph)}  # and what they are of
        self._copies: dict[str, str] = {}
        self._scales: dict[str, tuple[str, str]] = {}
        self._quantisers: defaultdict[str, list[Any]] = defaultdict(list)
        self._raw_uses: Counter[str] = Counter(self.outputs)
        self._kinds: dict[str, str] = {}  # class names by module, as metadata have them
        self._auxiliary: set[str] = set()  # shapes and scales
        self._nodes: list[_Node] = []
        for at, node in enumerate(graph.node):
            self._add(at, node)
        self._users: defaultdict[str, list[_Node]] = defaultdict(list)
        self._producers: dict[str, _Node] = {}
        for each in self._nodes:
            self._producers |= dict.fromkeys(each.outputs, each)
            for name in dict.fromkeys(each.inputs):
                self._users[name].append(each)
        for each in self._nodes:
            matrices = (self.weights[x].ndim > 1 for x in each.weights if x in self.weights)
            own = each.op in _MULTIPLY | {"Gather"} and any(matrices)
            each.weighted = own or any(self._is_weighted(name) for name in each.inputs)
        self._find_scopes()

    # -- reading nodes ---------------------------------------------------------------------------

    def _add(self, at: int, node: Any) -> None:
        inputs = [name for name in node.input if name]
        outputs = [name for name in node.output if name]
        self._raw_uses.update(inputs)
        if not outputs:
            return
        constants = [name for name in inputs if name in self._constants]
        if node.op_type == "Constant" or (inputs and len(constants) == len(inputs)):
            origin = self._constants[inputs[0]] if inputs else ""
            if node.op_type == "Identity" and _module_of_weight(outputs[0]):
                origin = outputs[0]
            self._constants |= dict.fromkeys(outputs, origin)
            return
        self._note_scales(node, inputs)
        live = [self._resolve(name) for name in inputs if name not in self._constants]
        if node.op_type in _ALIASES:
            self._copies[outputs[0]] = live[0]
            self._auxiliary.update(outputs[1:])  # the scale and zero point of a batch
            if node.op_type == _QUANTISE:
                self._quantisers[live[0]].append(node)
            if live[0] in self._auxiliary:
                self._auxiliary.add(outputs[0])
            return
        if node.op_type in ("Shape", "Size") or all(name in self._auxiliary for name in live):
            self._auxiliary.update(outputs)
            return
        activations = [name for name in live if name not in self._auxiliary]
        origins = [self._constants[name] for name in constants]
        first = self._resolve(inputs[0]) if inputs else ""
        found = _Node(at, node.op_type, node.name, activations, outputs, origins, first)
        self._read_scopes(node, found)
        self._nodes.append(found)

    def _resolve(self, name: str) -> str:
        while name in self._copies:
            name = self._copies[name]
        return name

    def _note_scales(self, node: Any, inputs: Sequence[str]) -> None:
        """Operators on integers take each tensor with its scale and zero point right after it."""
        if node.op_type == _DEQUANTISE and len(inputs) > 2:
            self._scales.setdefault(inputs[0], (inputs[1], inputs[2]))
        elif node.op_type.startswith(("QLinear", "QGemm")):
            for x, scale, zero_point in zip(inputs, inputs[1:], inputs[2:], strict=False):
                if x not in self._constants and scale in self._constants:
                    self._scales.setdefault(x, (scale, zero_point))

    def _read_scopes(self, node: Any, found: _Node) -> None:
        properties = {entry.key: entry.value for entry in node.metadata_props}
        scopes = _quoted(properties.get(_SCOPES, ""))[:-1]  # the last is the operator
        classes = _quoted(properties.get(_CLASSES, ""))
        if scopes:
            for scope, kind in zip(scopes, classes, strict=False):
                if scope and len(kind) < _MAX_NAME:
                    self._kinds.setdefault(scope, kind)
            found.scopes = [scope for scope in scopes if scope]
        elif node.name.startswith("/"):
            found.scopes = _scopes_in_path(node.name)
        found.named = bool(scopes) or node.name.startswith("/")
        too_long = any(len(scope) > _MAX_NAME for scope in found.scopes)
        if too_long or len(found.scopes) > _MAX_DEPTH:
            found.scopes, found.named = [], False

    # -- where nodes belong ----------------------------------------------------------------------

    def _find_scopes(self) -> None:
        uses = Counter(name for node in self._nodes for name in set(node.weights))
        for node in self._nodes:
            if not node.named:
                modules = [
                    module
                    for name in node.weights
                    if uses[name] == 1 and (module := _module_of_weight(name))
                ]
                if modules:
                    node.scopes, node.named = [modules[0]], True
        within = {node.scopes[-1] for node in self._nodes if node.scopes}
        around = {scope for node in self._nodes for scope in node.scopes[:-1]}
        around |= {scope for scope in _prefixes(within) if _is_block(scope, within)}
        for node in self._nodes:
            if len(node.scopes) == 1:  # it may be known by a weight alone
                node.scopes = [x for x in _prefixes(node.scopes) if x in around] + node.scopes
        for node in reversed(self._nodes):  # products whose bias says where they belong
            users = [user for name in node.outputs for user in self._users[name]]
            if not node.named and node.op in _MULTIPLY | {"Cast", "Mul"} and len(users) == 1:
                after = users[0]
                if after.op in _FINISH and after.named and not around.issuperset(after.scopes[-1:]):
                    node.scopes, node.named = after.scopes, True
        for node in self._nodes:
            if not node.named:
                node.scopes = self._neighbour_scopes(node, around)
        if not any(node.scopes for node in self._nodes):  # each operator is a layer
            for node in self._nodes:
                node.scopes = [f"{node.op}_{node.at}"]

    def _neighbour_scopes(self, node: _Node, around: set[str]) -> list[str]:
        """The modules around the layer before a node; around the one after it, of a product."""
        before = [self._producers[name] for name in node.inputs if name in self._producers]
        after = [user for name in node.outputs for user in self._users[name] if user.scopes]
        if node.op in _MULTIPLY and node.weights and after:
            near = min(after, key=lambda other: other.at)
        elif before:
            near = max(before, key=lambda other: other.at)
        else:
            return []
        inside_leaf = near.scopes and near.scopes[-1] not in around
        return near.scopes[:-1] if inside_leaf else near.scopes

    # -- layers ----------------------------------------------------------------------------------

    def layers(self) -> FoundLayers:
        """The calls of modules in this graph."""
        members: defaultdict[str, list[_Node]] = defaultdict(list)
        for node in self._nodes:
            for scope in dict.fromkeys(node.scopes):
                members[scope].append(node)
        around = {scope for node in self._nodes for scope in node.scopes[:-1]}
        names = _repeated_names(set(members), self._constants.values())
        found: list[_Found] = []
        lost: set[str] = set()
        for scope, nodes in members.items():
            module, number = names[scope]
            if scope in around and self._runs_twice(nodes):
                lost.add(module)
                continue
            parts = [nodes] if scope in around else self._connected(nodes)
            for i, part in enumerate(parts):
                gave = self._leaving(part)
                if gave is None:
                    lost.add(module)
                else:
                    given = self._entering(part)
                    found.append(
                        _Found(scope, module, number + i, scope in around, part, given, gave)
                    )
        every = {m for name in self._constants.values() if (m := _module_of_weight(name))}
        calls = self._calls(found)
        lost |= every - {call.name for call in calls}
        return FoundLayers(calls, sorted(lost))

    def _connected(self, nodes: Sequence[_Node]) -> list[list[_Node]]:
        """Parts of a single layer's nodes that exchange no tensor: one for each time it runs."""
        parts: list[tuple[set[str], list[_Node]]] = []
        for node in nodes:
            mine = [part for part in parts if not part[0].isdisjoint(node.inputs)]
            parts = [part for part in parts if part not in mine]
            given = set().union(*(part[0] for part in mine)) | set(node.outputs)
            parts.append((given, [*(n for part in mine for n in part[1]), node]))
        return [part for _, part in sorted(parts, key=lambda part: part[1][0].at)]

    def _runs_twice(self, nodes: Sequence[_Node]) -> bool:
        """Whether one weight matrix is used by several nodes of a module, whose calls are mixed."""
        uses = Counter(
            (node.op, name)
            for node in nodes
            if node.op in _MULTIPLY
            for name in node.weights
            if name in self.weights and self.weights[name].ndim > 1
        )
        return any(n > 1 for n in uses.values())

    def _leaving(self, nodes: Sequence[_Node]) -> str | None:
        """The tensor that other nodes use; None if there is none, or there are several."""
        inside = set(nodes)
        leaving = [
            name
            for node in nodes
            for name in node.outputs
            if name in map(self._resolve, self.outputs)
            or any(user not in inside for user in self._users[name])
        ]
        leaving = list(filter(self._is_weighted, leaving)) or leaving
        makers = {self._producers[name] for name in leaving}
        return leaving[0] if len(makers) == 1 else None

    def _entering(self, nodes: Sequence[_Node]) -> str | None:
        made = {name for node in nodes for name in node.outputs}
        given = [x for node in nodes for x in node.inputs if x not in made]
        return next(iter([*filter(self._is_weighted, given), *given]), None)

    def _is_weighted(self, name: str) -> bool:
        return name in self._producers and self._producers[name].weighted

    def _calls(self, found: Sequence[_Found]) -> list[LayerCall]:
        """Calls of modules, with those of a module's parts inside its own."""
        classes = self._classes(found)
        around = {each.scope for each in found if each.has_parts}
        parts: defaultdict[str, list[_Found]] = defaultdict(list)
        for each in sorted(found, key=lambda each: each.nodes[-1].at):
            outer = [scope for scope in _prefixes([each.scope]) if scope in around]
            parts[outer[-1] if outer else ""].append(each)
        clock = itertools.count()

        def nested(scope: str) -> Iterator[LayerCall]:
            for each in parts[scope]:
                began = next(clock)
                if each.has_parts:
                    yield from nested(each.scope)
                yield self._call(each, classes[each.module], began, next(clock))

        return list(nested(""))

    def _call(self, layer: _Found, kind: type[nn.Module], began: int, ended: int) -> LayerCall:
        name, given = layer.module, layer.given
        if "Norm" in kind.__name__ and layer.nodes[0].op in _MULTIPLY:
            given = None  # it has a convolution in it, and PyTorch's norm was given what that gave
        if not layer.has_parts and self._is_fused(layer):
            name += FUSED
        weights = self._own_weights(layer)
        channels = {} if layer.has_parts else _channels(kind, layer.nodes, self.weights)
        return LayerCall(
            name, layer.number, kind, given, layer.gave, began, ended, weights, channels
        )

    def _is_fused(self, layer: _Found) -> bool:
        """Whether a layer's output is that of a norm or an activation after it."""
        kind, nodes = self._kinds.get(layer.module), layer.nodes
        raw = [name for node in nodes for name in node.weights]
        product = next((node for node in nodes if node.op in _MULTIPLY), None)
        if product is None:
            return False
        if kind is None:  # else the file says which module gave this output
            unnamed = "Conv" in product.op and not any(map(_module_of_weight, raw))
            if unnamed or any(_FOLDED.match(name) or _FOLDED_BIAS in name for name in raw):
                return True
        quantised = self.quantised(layer.gave)
        zero = None if quantised is None else self.weights.get(quantised.zero_point)
        return zero is not None and zero.size == 1 and zero.item() == np.iinfo(zero.dtype).min

    def _own_weights(self, layer: _Found) -> dict[str, Tensor]:
        """Weights that a layer's nodes use and none of its parts', by their names in it."""
        own_nodes = [node for node in layer.nodes if node.scopes[-1] == layer.scope]
        found: dict[str, Tensor] = {}
        for name in dict.fromkeys(name for node in own_nodes for name in node.weights):
            if name in self.weights and self.weights[name].ndim:
                own = (
                    name.removeprefix(f"{layer.module}.")
                    if _module_of_weight(name)
                    else f"of {name}"
                )
                found[own] = as_tensor(self.weights[name])
                self.owned.add(name)
        return found

    def _classes(self, found: Sequence[_Found]) -> dict[str, type[nn.Module]]:
        """The class of each module: PyTorch's own, or one made for it.

        Without metadata, modules whose parts have mostly the same names count as one class.
        """
        inside: defaultdict[str, set[str]] = defaultdict(set)
        for each in found:
            for scope in _prefixes([each.module]):
                inside[scope].add(each.module.removeprefix(f"{scope}."))
        made: dict[str, type[nn.Module]] = {}
        blocks: list[tuple[set[str], type[nn.Module]]] = []
        classes: dict[str, type[nn.Module]] = {}
        for each in found:
            full, parts = self._kinds.get(each.module), inside[each.module]
            if full is not None:
                kind = made.setdefault(full, _class_named(full))
            elif not each.has_parts:
                kind = _class_of_operator(each.nodes, self.weights)
            elif all(part.split(".")[0].isdecimal() for part in parts):
                kind = nn.Sequential
            else:
                alike = (
                    kind for other, kind in blocks if 2 * len(other & parts) >= len(other | parts)
                )
                kind = next(alike, None) or type("Block", (nn.Module,), {})
                blocks.append((parts, kind))
            classes.setdefault(each.module, kind)
        return classes

    # -- values ----------------------------------------------------------------------------------

    def quantised(self, name: str) -> Quantised | None:
        """The integers that stand for a tensor, where the graph goes on with these alone."""
        quantisers = self._quantisers[name]
        if quantisers and len(quantisers) == self._raw_uses[name] and len(quantisers[0].input) > 2:
            return Quantised(quantisers[0].output[0], *quantisers[0].input[1:3])
        seen = set()
        integers = name
        while integers not in seen:
            seen.add(integers)
            if integers in self._scales:
                return Quantised(name, *self._scales[integers])
            users = (user for user in self._users[integers] if user.first == integers)
            moved = [user for user in users if user.op in _REARRANGE]
            integers = moved[0].outputs[0] if moved else integers
        return None


def as_tensor(values: np.ndarray) -> Tensor:
    """An array of an ONNX file; types that torch does not know as bytes."""
    own = values if values.flags.c_contiguous and values.flags.writeable else values.copy()
    try:
        return torch.from_numpy(own)
    except TypeError:
        return torch.from_numpy(own.reshape(-1).view(np.uint8))


def _initializer_names(graph: Any) -> list[str]:
    return [x.name for x in graph.initializer] + [x.values.name for x in graph.sparse_initializer]


def _quoted(text: str) -> list[str]:
    """The strings in the text of a list of strings.

    >>> _quoted("['', 'layer1', 'layer1.0']")
    ['', 'layer1', 'layer1.0']
    """
    return re.findall(r"'([^']*)'", text)


def _scopes_in_path(name: str) -> list[str]:
    """The modules around a node whose name is a path of them.

    >>> _scopes_in_path("/layer1/layer1.0/shortcut/shortcut.0/Conv")
    ['layer1', 'layer1.0', 'layer1.0.shortcut', 'layer1.0.shortcut.0']
    """
    found: list[str] = []
    base = before = ""
    for part in name.split("/")[1:-1]:
        if not (before and part.startswith(f"{before}.")):
            base = f"{found[-1]}." if found else ""
        found.append(base + part)
        before = part
    return found


def _module_of_weight(name: str) -> str | None:
    """The module that a weight's name says it is of; None for a name that an exporter made up.

    >>> _module_of_weight("layer1.0.conv1.weight_quantized")
    'layer1.0.conv1'
    >>> _module_of_weight("onnx::Conv_100") is None
    True
    """
    if _OF_SCALES.search(name):  # a weight's may serve its output as well
        return None
    plain = _QUANTISED.sub("", _FOLDED.sub("", name))
    module, _, last = plain.rpartition(".")
    fits = re.fullmatch(r"[A-Za-z_]\w*", last) and re.fullmatch(r"\w+(\.\w+)*", module)
    return module if fits and len(module) < _MAX_NAME else None


def _prefixes(names: Iterable[str]) -> list[str]:
    """The names of the modules around some, outermost first."""
    return [name[: m.start()] for name in names for m in re.finditer(r"\.", name)]


def _is_block(scope: str, within: Iterable[str]) -> bool:
    """Whether a module that holds others is more than a list of numbered ones."""
    inside = [name.removeprefix(f"{scope}.") for name in within if name.startswith(f"{scope}.")]
    return not all(name.split(".")[0].isdecimal() for name in inside)


def _repeated_names(scopes: set[str], weights: Iterable[str]) -> dict[str, tuple[str, int]]:
    """The module of each scope, and which of its calls it is.

    The paths of later calls end with `_1`, `_2` and so on, as names of modules may as well: those
    have weights of that name, or there is no earlier call.
    """
    weighted = {module for name in weights if (module := _module_of_weight(name))}
    weighted |= set(_prefixes(weighted))
    found: dict[str, tuple[str, int]] = {}
    for scope in sorted(scopes, key=lambda scope: scope.count(".")):
        around, dot, last = scope.rpartition(".")
        around, number = found.get(around, (around, 1))
        base, _, repeat = last.rpartition("_")
        if base and repeat.isdecimal() and int(repeat) > 0 and scope not in weighted:
            before = scope.removesuffix(f"_{repeat}")
            if before in scopes or f"{before}_{int(repeat) - 1}" in scopes:
                last, number = base, int(repeat) + 1
        found[scope] = around + dot + last, number
    return found


def _class_named(full: str) -> type[nn.Module]:
    """PyTorch's own class of a full name, if layers are chosen by it, or a new one of that name."""
    module, _, name = full.rpartition(".")
    if module.startswith("torch.nn.modules.") and hasattr(nn, name):
        return _own_class(getattr(nn, name))
    return type(name or "Module", (nn.Module,), {})


def _own_class(kind: type[nn.Module]) -> type[nn.Module]:
    """A class that a pass tells apart, or one of the same name without code of its own."""
    known = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Linear, nn.Embedding, nn.RNNBase)
    return kind if issubclass(kind, known) else _named_class(kind.__name__)


@functools.cache
def _named_class(name: str) -> type[nn.Module]:
    return type(name, (nn.Module,), {})


def _class_of_operator(
    nodes: Sequence[_Node], weights: Mapping[str, np.ndarray]
) -> type[nn.Module]:
    node = next((node for node in nodes if node.op in _MULTIPLY), nodes[0])
    if "Conv" in node.op:
        axes = max((weights[name].ndim for name in node.weights if name in weights), default=4) - 2
        return _own_class(_CONVOLUTIONS.get(axes, nn.Conv2d))
    op = node.op.removeprefix("QLinear")
    if op in _KINDS and (op not in ("Gather", "MatMul") or node.weights):
        return _own_class(_KINDS[op])
    return _named_class(op)


def _channels(
    kind: type[nn.Module], nodes: Sequence[_Node], weights: Mapping[str, np.ndarray]
) -> dict[str, int]:
    """How many channels a linear layer takes and gives, by which its axis of them is found."""
    for node in nodes:
        shapes = [weights[x].shape for x in node.weights if x in weights and weights[x].ndim == 2]
        if node.op in _MULTIPLY and issubclass(kind, nn.Linear) and shapes:
            into, out = shapes[0] if "MatMul" in node.op else shapes[0][::-1]
            return {"in_features": int(into), "out_features": int(out)}
    return {"dropout": 0} if issubclass(kind, nn.RNNBase) else {}
