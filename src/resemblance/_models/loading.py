"""Load models by name, as the command line, sweeps and `record` take them.

A model is `torchvision:NAME`, `timm:NAME`, `hf:NAME-OR-FOLDER` or `FILE.py:FUNCTION`. Exported
networks are `onnx:FILE`, `torchscript:FILE` and `gguf:FILE`. Weights come from safetensors or from
a state dict that is read without unpickling code.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor, nn

from .._data.hugging_face import (
    convert_load_errors,
    own_tokenizer,
    pretrained_source,
    remote_code_error,
)
from .._data.load_data import call_user_function
from ..errors import DataError, FormatError, close_matches, first_line, import_optional, warn
from .wrappers import unwrap_model

_MSG_EXPORTED = "{} contains a network ({}), not weights or data; pass it as the model, {}:{}"
_PREFIXES = {"ONNX": "onnx", "TorchScript": "torchscript", "GGUF": "gguf"}  # of addresses
_SUFFIXES = {".onnx": "ONNX", ".gguf": "GGUF"}
MODEL_PREFIXES = ("torchvision:", "timm:", "hf:", *(f"{name}:" for name in _PREFIXES.values()))


def exported_format(path: str | PurePath) -> str | None:
    """What an exported network's file holds: ONNX, TorchScript or GGUF; None for other files.

    >>> exported_format("net.onnx")
    'ONNX'
    """
    if (kind := _SUFFIXES.get(PurePath(path).suffix.lower())) is not None:
        return kind
    try:
        with zipfile.ZipFile(path) as file:
            code = any(name.endswith("/constants.pkl") for name in file.namelist())
            return "TorchScript" if code else None
    except (OSError, ValueError, zipfile.BadZipFile):
        return None


def refuse_exported_model(path: str) -> None:
    """An error if a file of weights or data is an exported network instead."""
    if kind := exported_format(path):
        raise DataError(_MSG_EXPORTED.format(path, kind, _PREFIXES[kind], path))


def to_module(model: Any) -> nn.Module:
    """A model as `record` takes it as a module that can be run.

    Args:
        model: a module, also a scripted one; or the address or the path of an exported one.
    """
    if isinstance(model, torch.jit.ScriptModule):
        from .runtimes.torchscript import TorchScriptModel

        return TorchScriptModel(model)
    if isinstance(model, str | PurePath):
        exported = str(model).partition(":")[0] in _PREFIXES.values() or exported_format(model)
        return load_model(str(model)) if exported else model  # type: ignore[return-value]
    kind = type(model)
    if kind.__module__.split(".")[0] in ("onnx", "onnxruntime"):
        raise DataError(
            f"expected a torch.nn.Module, found {kind.__name__}; save the ONNX model to a file and "
            'pass "onnx:FILE"'
        )
    return unwrap_model(model) if isinstance(model, nn.Module) else model


def load_model(
    spec: str, *, weights: str | None = None, pretrained: bool = False, trained: bool = True
) -> nn.Module:
    """The model that a specification names, with weights from a file if one is given.

    Args:
        spec: torchvision:NAME, timm:NAME, hf:NAME-OR-FOLDER, onnx:FILE, torchscript:FILE,
            gguf:FILE or FILE.py:FUNCTION.
        weights: a .safetensors file or a state dict.
        pretrained: whether to download the weights of torchvision or timm.
        trained: whether its weights matter, so that random ones are warned about.

    Returns:
        The model, on the CPU.
    """
    library, _, name = spec.partition(":")
    if (kind := exported_format(spec)) and library not in _PREFIXES.values():
        library, name = _PREFIXES[kind], spec
    if library in ("onnx", "torchscript") and name:
        if weights is not None:
            raise DataError(f"{spec} includes its weights; omit `weights`")
        return _load_exported(library, name)
    if library in _LIBRARIES and name:
        model = _load_vision_model(library, name, pretrained)
    elif library in ("hf", "gguf") and name:
        model = _load_transformers(str(own_tokenizer(f"{library}:{name}")))
    elif ".py:" in spec:
        model = call_user_function(spec)
        if not isinstance(model, nn.Module):
            raise DataError(f"{spec} returned {type(model).__name__}; expected a torch.nn.Module")
    else:
        raise DataError(
            f"no model is named {spec!r}; expected torchvision:NAME, timm:NAME, hf:NAME, "
            "onnx:FILE, torchscript:FILE, gguf:FILE or FILE.py:FUNCTION"
        )
    if weights is not None:
        load_weights(model, weights)
    elif trained and not pretrained and library in _LIBRARIES:
        warn(
            f"{spec} has random weights. Pass a file of trained weights as `weights`, or load the "
            "library's with `pretrained=True`"
        )
    return model


_LIBRARIES = ("torchvision", "timm")  # that hold networks for images by name


def _load_exported(library: str, name: str) -> nn.Module:
    """A network that another engine runs; `name` may end with `?provider=NAME`."""
    if library == "torchscript":
        from .runtimes.torchscript import TorchScriptModel

        return TorchScriptModel(name)
    from .runtimes.onnx import OnnxModel

    path, _, provider = name.partition("?provider=")
    return OnnxModel(path, provider or None)


def _load_vision_model(library: str, name: str, pretrained: bool) -> nn.Module:
    timm = library == "timm"
    models = import_optional("timm" if timm else "torchvision.models", library, "vision")
    known = models.list_models()
    if not (models.is_model(name) if timm else name in known):  # timm's may name a tag of weights
        raise DataError(f"{library} has no model {name!r}; nearest: {close_matches(name, known)}")
    if timm:
        return models.create_model(name, pretrained=pretrained)
    return models.get_model(name, weights="DEFAULT" if pretrained else None)


def _load_transformers(name: str) -> nn.Module:
    """A model of the library's own classes: code that comes with a model is never run."""
    transformers = import_optional("transformers", "transformers", "text")
    remedy = "expected a folder with config.json, or a name on the hub"
    if not sys.stderr.isatty():  # which its bars are for
        transformers.utils.logging.disable_progress_bar()
    with convert_load_errors(name, "Hugging Face model", remedy):
        source, options = pretrained_source(name)
        config = transformers.AutoConfig.from_pretrained(source, **options)
        causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        unnamed = "AutoModelForCausalLM" if causal and "gguf_file" in options else "AutoModel"
        architecture = (config.architectures or [unnamed])[0]
        if not hasattr(transformers, architecture):
            raise remote_code_error(name)
        return getattr(transformers, architecture).from_pretrained(source, **options)


def load_weights(model: nn.Module, path: str) -> None:
    """Fill a model from safetensors or from a state dict, which is never unpickled as code."""
    if not Path(path).is_file():
        raise FormatError(f"no weights at {path}; expected a .safetensors file or a state dict")
    refuse_exported_model(path)
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FormatError(
            f"{path} contains no weights that can be loaded safely ({first_line(error)}); save "
            "them with torch.save(model.state_dict(), ...) or as safetensors"
        ) from error
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise FormatError(f"{path} contains {type(state).__name__}; expected a dict of tensors")
    own = model.state_dict()
    misfits = [
        f"{key} is {tuple(state[key].shape)} there, {tuple(own[key].shape)} in the model"
        for key in own
        if key in state and own[key].shape != state[key].shape
    ][:1]
    missing, unknown = own.keys() - state.keys(), state.keys() - own.keys()
    misfits += [
        f"{len(names)} {what}, such as {min(names)}"
        for names, what in ((missing, "missing"), (unknown, "unknown"))
        if names
    ]
    if misfits:
        raise FormatError(f"the weights in {path} do not match the model: {'; '.join(misfits)}")
    model.load_state_dict(dict(state))
