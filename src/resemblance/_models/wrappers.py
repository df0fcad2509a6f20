"""Wrapped layers and weights: adapters, quantisation, sharding, offloading and checkpointing.

Libraries are recognised by the names of their classes, hooks and attributes, so none is imported.
Names of modules are compared without what wrappers add to them (`strip_wrapper_prefixes`).

- Sharded weights: DTensors, as FSDP and tensor parallelism create them. FSDP gathers a module's
  weights before it runs, so every process computes whole outputs. Under tensor parallelism a
  process computes parts of many outputs, which the outputs themselves do not show.
- Offloaded weights: accelerate keeps them on the CPU or on disk. Such a weight is on the meta
  device except while its module runs. The hook that loads it (`module._hf_hook`) says where the
  module runs, and its `weights_map` holds the values. An autograd graph would keep every weight
  that it saw until the backward pass. With `refetch_offloaded_weights` it keeps the weight's name
  instead and reads the weight again when it is needed.
- Adapters, parametrizations and quantised layers: modules with modules inside them that still count
  as one layer with one weight matrix, such as a LoRA adapter around its `base_layer`, the
  `parametrizations` that compute a weight, or the `_packed_params` of an int8 layer.
- Gradient checkpointing: libraries skip it in evaluation mode, or start it around a layer's hooks.
  During a recording pass each layer that transformers, timm or torch marked for it runs inside
  torch's own checkpoint, in any mode, from the first layer on whose input requires a gradient.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.checkpoint import CheckpointError, checkpoint, set_checkpoint_early_stop

from .._data.batches import batch_leaves
from ..errors import LayerError, NoBackwardError

_WRAPPER_PARTS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"}
_FUSED_INPUT = ".fused:in"  # what such a layer is given, which no fusion changes
_WRAPPER_PREFIXES = ("base_model.model.", "module.")  # of adapters, and of data parallel networks


def unwrap_model(model: nn.Module) -> nn.Module:
    """The module under DataParallel, DistributedDataParallel and torch.compile."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrap_model(model.module)
    inner: Any = getattr(model, "_orig_mod", None)
    return model if inner is None else unwrap_model(inner)


def strip_compile_prefix(name: str) -> str:
    """A module's or parameter's name without the marks that torch.compile leaves in it.

    >>> strip_compile_prefix("layer1._orig_mod.0.weight")
    'layer1.0.weight'
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def strip_wrapper_prefixes(name: str) -> str:
    """A module's name as it would be without wrappers around the network or its parts.

    >>> (strip_wrapper_prefixes("base_model.model.h.0.attn.base_layer"),
    ...  strip_wrapper_prefixes("module.base_model.model.fc"))
    ('h.0.attn', 'fc')
    """
    while prefix := next((x for x in _WRAPPER_PREFIXES if name.startswith(x)), None):
        name = name.removeprefix(prefix)
    name = name.replace(_FUSED_INPUT, ":in")
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)


def is_sharded(weight: object) -> bool:
    """Whether it is a DTensor, of which this process holds a part."""
    return isinstance(weight, Tensor) and hasattr(weight, "full_tensor")


def sharding_of(model: nn.Module) -> str | None:
    """What splits the weights over several processes, or None if this process has them all.

    FSDP 1 marks parameters that it flattens, with `use_orig_params` or without. ZeRO 3 gives each
    an id, and leaves an empty tensor until a module needs the weight. Lower stages split none.
    """
    for weight in model.parameters():
        if is_sharded(weight):
            return "FSDP or tensor parallelism"
        if getattr(weight, "_fsdp_flattened", False):
            return "FullyShardedDataParallel (FSDP 1)"
        if hasattr(weight, "ds_id"):
            return "DeepSpeed's ZeRO 3"
    return None


def gathered_by_fsdp(model: nn.Module) -> set[int]:
    """Ids of the parameters of FSDP modules, which may stay whole after a forward pass."""
    modules = (m for m in model.modules() if _has_base_named(m, "FSDPModule"))
    return {id(p) for module in modules for p in module.parameters()}


def find_tensor_parallel_weight(model: nn.Module) -> str | None:
    """The name of a weight whose module runs on a part of it, as tensor parallelism has it."""
    gathered = gathered_by_fsdp(model)
    for name, weight in model.named_parameters():
        placements = getattr(weight, "placements", ())  # of a DTensor
        axes = sum(not placement.is_replicate() for placement in placements)
        if axes > (id(weight) in gathered):  # FSDP splits it along one axis of the mesh
            return name
    return None


ReadWeight = Callable[[], Tensor]


def input_device(model: nn.Module) -> torch.device | None:
    """Where a model wants its inputs: as its hooks say, else where its first real weight is."""
    hooks = (hook for module in model.modules() for hook in _accelerate_hooks(module))
    for device in (getattr(hook, "execution_device", None) for hook in hooks):
        if device is not None:
            return torch.device(device)
    weights = itertools.chain(model.parameters(), model.buffers())
    return next((weight.device for weight in weights if not weight.is_meta), None)


def find_unloaded_weight(model: nn.Module) -> str | None:
    """The name of a weight that is on the meta device and that nothing brings back."""
    named = model.named_parameters(remove_duplicate=False)
    on_meta = [name for name, weight in named if weight.is_meta]
    readers = offloaded_weight_readers(model) if on_meta else {}
    return next((name for name in on_meta if name not in readers), None)


def offloaded_weight_readers(model: nn.Module) -> dict[str, ReadWeight]:
    """How to read each weight that is kept elsewhere, by its name in the model."""
    return {
        f"{place}.{name}" if place else name: read
        for place, module in model.named_modules(remove_duplicate=False)
        for name, _, read in _offloaded_weights(module)
    }


def is_offloaded(model: nn.Module) -> bool:
    """Whether any weight is kept elsewhere and brought when it is needed."""
    return any(any(map(_is_offload_hook, _accelerate_hooks(m))) for m in model.modules())


@contextlib.contextmanager
def refetch_offloaded_weights(model: nn.Module) -> Iterator[None]:
    """In the block, a graph fetches offloaded weights for its backward and does not hold them."""
    modules = [m for m in model.modules() if any(map(_is_offload_hook, _accelerate_hooks(m)))]
    if not modules:
        yield
        return
    running: list[nn.Module] = []

    def pack(tensor: Tensor) -> Callable[[], Tensor]:
        for module in reversed(running):
            for _, weight, read in _offloaded_weights(module):
                shared = storage_id(weight) == storage_id(tensor) is not None
                if shared and not weight.is_meta and weight.dtype == tensor.dtype:
                    offset = int(tensor.storage_offset() - weight.storage_offset())
                    shape = tensor.size(), tensor.stride(), offset
                    return partial(_read_view, read, weight.device, *shape)
        return partial(_saved_tensor, tensor.detach(), tensor._version)

    with contextlib.ExitStack() as undo:
        for module in modules:
            begun = module.register_forward_pre_hook(lambda m, _: running.append(m), prepend=True)
            undo.callback(begun.remove)
            ended = module.register_forward_hook(lambda m, *_: running.remove(m), always_call=True)
            undo.callback(ended.remove)
        undo.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda read: read()))
        yield


def _read_view(
    read: ReadWeight, device: torch.device, size: torch.Size, stride: tuple[int, ...], offset: int
) -> Tensor:
    """What a graph needs of a weight that can be read again."""
    weight = read().to(device)
    return weight.as_strided(size, stride, weight.storage_offset() + offset)


def _saved_tensor(tensor: Tensor, version: int) -> Tensor:
    """Any other tensor that a graph needs, as it was."""
    if tensor._version != version:  # which torch does not look at where hooks are
        raise RuntimeError(
            "a tensor needed for gradient computation has been modified by an inplace operation: "
            f"of shape {tuple(tensor.shape)}, at version {tensor._version}, expected {version}"
        )
    return tensor


def _accelerate_hooks(module: nn.Module) -> list[Any]:
    """accelerate's hooks on a module, one by one."""
    hook = module.__dict__.get("_hf_hook")
    return [] if hook is None else list(getattr(hook, "hooks", [hook]))


def _is_offload_hook(hook: Any) -> bool:
    return bool(getattr(hook, "offload", False)) and getattr(hook, "weights_map", None) is not None


def _offloaded_weights(module: nn.Module) -> Iterator[tuple[str, Tensor, ReadWeight]]:
    """The weights that a module's hooks bring, as they are now, and how to read their values."""
    for hook in filter(_is_offload_hook, _accelerate_hooks(module)):
        deep = bool(getattr(hook, "place_submodules", False))
        tensors: list[tuple[str, Tensor]] = []
        tensors += module.named_parameters(recurse=deep, remove_duplicate=False)
        if getattr(hook, "offload_buffers", False):
            tensors += module.named_buffers(recurse=deep, remove_duplicate=False)
        for name, weight in tensors:
            yield name, weight, partial(_read_offloaded, hook.weights_map, name, weight.dtype)


def _read_offloaded(weights: Mapping[str, Tensor], name: str, dtype: torch.dtype) -> Tensor:
    return weights[name].detach().to(dtype)  # as the hook brings it


def storage_id(tensor: Tensor) -> int | None:
    """Identifies the memory that a tensor shares with its views; None if it has none of its own."""
    if tensor.layout != torch.strided:
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # as torch says of tensors without one
        return None


_WEIGHT_CONTAINERS = {"parametrizations", "_packed_params"}  # modules that hold a layer's weights
_ADAPTER_BASE = "base_layer"  # what an adapter stands around


def is_wrapped_layer(module: nn.Module) -> bool:
    """Whether it is a layer with weights, though it has modules inside it or no parameters.

    >>> is_wrapped_layer(nn.Linear(2, 3))
    False
    >>> is_wrapped_layer(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)))
    True
    """
    parts = {name: part for name, part in module._modules.items() if part is not None}
    if _ADAPTER_BASE in parts:
        return is_leaf(parts[_ADAPTER_BASE])
    if parts.keys() - _WEIGHT_CONTAINERS:
        return False
    return "parametrizations" in parts or _has_packed_weights(module)


def is_leaf(module: nn.Module) -> bool:
    """Whether it is a single layer: one with no modules inside, or one that was altered."""
    return not any(True for _ in module.children()) or is_wrapped_layer(module)


def names_inside_wrapped_layers(modules: dict[str, nn.Module]) -> set[str]:
    """The names of modules that are parts of a layer that was altered."""
    wrapped = tuple(f"{name}." for name, module in modules.items() if is_wrapped_layer(module))
    return {name for name in modules if name.startswith(wrapped)}


def layer_of_parameter(modules: dict[str, nn.Module], parameter: str) -> str:
    """The name of the layer that a parameter is of: one that was altered, or its module.

    >>> layer_of_parameter({"0": nn.Linear(2, 3)}, "0.weight")
    '0'
    """
    names = [parameter[:i] for i, letter in enumerate(parameter) if letter == "."]
    around = (name for name in names if name in modules and is_wrapped_layer(modules[name]))
    return next(around, names[-1] if names else "")


def count_weight_matrices(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """How many weight matrices each and its parts are made of; a layer that was altered has one."""
    known: dict[int, set[int]] = {}

    def matrix_ids(module: nn.Module) -> set[int]:
        if id(module) not in known:
            own = {id(p) for p in _own_parameters(module) if p.ndim > 1}
            parts = map(matrix_ids, module.children())
            known[id(module)] = {id(module)} if is_wrapped_layer(module) else own.union(*parts)
        return known[id(module)]

    return {name: len(matrix_ids(module)) for name, module in modules.items()}


def has_weight_matrices(module: nn.Module) -> bool:
    """Whether it has weight matrices of its own."""
    return any(p.ndim > 1 for p in _own_parameters(module)) or is_wrapped_layer(module)


def _own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Those of `parameters(recurse=False)`, which takes long to begin: each module asks often."""
    return [parameter for parameter in module._parameters.values() if parameter is not None]


def _has_packed_weights(module: nn.Module) -> bool:
    """Whether it is a linear layer or a convolution whose weights are no parameters, as in int8."""
    if _own_parameters(module):
        return False
    names = ("in_features", "out_features"), ("in_channels", "out_channels")
    return any(all(isinstance(getattr(module, n, None), int) for n in pair) for pair in names)


# -- layers without a backward pass --------------------------------------------------------------


@contextlib.contextmanager
def raise_without_backward(model: nn.Module) -> Iterator[None]:
    """In the block, a quantised layer that ends the gradient's way is an error that names it."""
    with contextlib.ExitStack() as undo:
        for name, module in model.named_modules():
            if is_quantised(module):
                check = partial(_check_backward, name)
                undo.callback(module.register_forward_hook(check, with_kwargs=True).remove)
        yield


def is_quantised(module: nn.Module) -> bool:
    """Whether its weights are stored in fewer bits than they stand for."""
    return _has_packed_weights(module) or any(
        not weight.is_floating_point()
        or (is_traceable_wrapper_subclass(weight) and not is_sharded(weight))
        for weight in _own_parameters(module)
    )


def _check_backward(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    if _requires_gradient((args, kwargs)) and not all(map(_has_backward, _floating(output))):
        raise NoBackwardError(name, type(module).__name__)


def _requires_gradient(inputs: Any) -> bool:
    """Whether a graph is built of what is computed from them."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in _floating(inputs))


def _floating(values: Any) -> list[Tensor]:
    leaves = (x for x in batch_leaves(values) if isinstance(x, Tensor))
    return [x for x in leaves if x.is_floating_point()]


def _has_backward(x: Tensor) -> bool:
    """Whether a gradient at it comes to what it was made from."""
    made_by = x.grad_fn.name() if x.grad_fn is not None else ""
    return x.requires_grad and not made_by.endswith("NotImplemented")


_SWITCHES = _TIMM_SWITCH, _TRANSFORMERS_SWITCH = "grad_checkpointing", "gradient_checkpointing"
_TRANSFORMERS_LAYER = "GradientCheckpointingLayer"  # of transformers, since version 4.53
_TORCH_WRAPPER = "CheckpointWrapper"  # of torch.distributed
_KV_CACHES = ("past_key_values", "past_key_value", "layer_past")  # which a second run would add to


@contextlib.contextmanager
def keep_gradient_checkpointing(model: nn.Module) -> Iterator[None]:
    """In the block, layers for which checkpointing is switched on are checkpointed in any mode."""
    layers = list(_checkpointed_layers(model))
    own = [
        m for m in model.modules() if m.__dict__.get(_TIMM_SWITCH) is True and _blocks_in_lists(m)
    ]
    with contextlib.ExitStack() as undo:
        for module in own:  # which checkpoints in any mode: not twice
            undo.callback(setattr, module, _TIMM_SWITCH, True)
            setattr(module, _TIMM_SWITCH, False)
        for layer in layers:
            _checkpoint_forward(layer, undo)
        try:
            yield
        except CheckpointError as error:
            raise LayerError(_MSG_TAPPED_INSIDE) from error
        except RuntimeError as error:
            if "use_reentrant=True" in str(error):
                raise LayerError(_MSG_REENTRANT) from error
            raise


def uses_gradient_checkpointing(model: nn.Module) -> bool:
    """Whether any layer is, here and now."""
    own = (module.__dict__.get("forward") for module in model.modules())
    return any(
        isinstance(forward, partial) and forward.func is _run_checkpointed for forward in own
    )


_MSG_TAPPED_INSIDE = (
    "a layer inside a part of the network that uses gradient checkpointing cannot be recorded with "
    "gradients; disable checkpointing, or record the output of the checkpointed part"
)
_MSG_REENTRANT = (
    "the network calls torch's checkpoint with use_reentrant=True, which provides no gradients of "
    "activations; disable checkpointing, or use use_reentrant=False"
)


def _checkpointed_layers(model: nn.Module) -> Iterator[nn.Module]:
    """The layers for which checkpointing is switched on, each once."""
    found: dict[int, nn.Module] = {}
    for module in model.modules():
        if _has_base_named(module, _TORCH_WRAPPER):
            found[id(module)] = module
        elif module.__dict__.get(_TIMM_SWITCH) is True:
            found |= {id(block): block for block in _blocks_in_lists(module)}
        elif getattr(module, _TRANSFORMERS_SWITCH, False) is True:
            if _has_base_named(module, _TRANSFORMERS_LAYER):
                found[id(module)] = module
            elif not any(
                _has_base_named(part, _TRANSFORMERS_LAYER) for part in module.modules()
            ):  # before 4.53
                found |= {id(block): block for block in _blocks_in_lists(module)}
    return iter(found.values())


def _has_base_named(module: nn.Module, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(module).__mro__)


def _blocks_in_lists(module: nn.Module) -> list[nn.Module]:
    """The parts of it that stand in lists, but for those that checkpoint their own."""
    lists = (nn.Sequential, nn.ModuleList)
    todo = [part for part in module.children() if isinstance(part, lists)]
    found: list[nn.Module] = []
    while todo:
        for part in todo.pop(0):
            own = any(getattr(m, x, False) is True for m in part.modules() for x in _SWITCHES)
            if isinstance(part, lists):
                todo.append(part)
            elif any(True for _ in part.children()) and not own:
                found.append(part)
    return found


def _checkpoint_forward(layer: nn.Module, undo: contextlib.ExitStack) -> None:
    forward = layer.forward
    if _has_base_named(layer, _TORCH_WRAPPER):
        forward = layer.get_submodule("_checkpoint_wrapped_module")
    if "forward" in layer.__dict__:  # as accelerate puts one there
        undo.callback(setattr, layer, "forward", layer.__dict__["forward"])
    else:
        undo.callback(layer.__dict__.pop, "forward")
    # what is left half-way would keep an offloaded weight in its place
    whole = any("_hf_hook" in part.__dict__ for part in layer.modules())
    layer.forward = partial(_run_checkpointed, forward, not whole)


def _run_checkpointed(
    forward: Callable[..., Any], may_stop: bool, *args: Any, **kwargs: Any
) -> Any:
    transformed = torch._C._are_functorch_transforms_active()  # which cannot be checkpointed
    cached = any(kwargs.get(name) is not None for name in _KV_CACHES)
    if transformed or cached or not _requires_gradient((args, kwargs)):
        return forward(*args, **kwargs)
    with set_checkpoint_early_stop(may_stop):
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
