"""Models by name, for the command line.

A model is `torchvision:NAME`, `timm:NAME`, `hf:NAME-OR-FOLDER` or `FILE.py:FUNCTION`. Weights come
from safetensors or from a state dict read without unpickling code.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._data.hugging_face import loading, needs_code
from .._data.user_files import call_function
from ..errors import DataError, FormatError, first_line, nearest, optional


def load_model(spec: str, *, weights: str | None = None, pretrained: bool = False) -> nn.Module:
    """The model that a specification names, with weights from a file if one is given."""
    library, _, name = spec.partition(":")
    if library == "torchvision" and name:
        model = _torchvision(name, pretrained)
    elif library == "timm" and name:
        model = _timm(name, pretrained)
    elif library == "hf" and name:
        model = _transformers(name)
    elif ".py:" in spec:
        model = call_function(spec)
        if not isinstance(model, nn.Module):
            raise DataError(f"{spec} returned {type(model).__name__}; expected a torch.nn.Module")
    else:
        raise DataError(
            f"no model is named {spec!r}; expected torchvision:NAME, timm:NAME, hf:NAME or "
            "FILE.py:FUNCTION"
        )
    if weights is not None:
        load_weights(model, weights)
    return model


def _torchvision(name: str, pretrained: bool) -> nn.Module:
    models = optional("torchvision.models", "torchvision", "vision")
    known = models.list_models()
    if name not in known:
        raise DataError(f"torchvision has no model {name!r}; nearest: {nearest(name, known)}")
    return models.get_model(name, weights="DEFAULT" if pretrained else None)


def _timm(name: str, pretrained: bool) -> nn.Module:
    timm = optional("timm", "timm", "vision")
    if not timm.is_model(name):
        raise DataError(f"timm has no model {name!r}; nearest: {nearest(name, timm.list_models())}")
    return timm.create_model(name, pretrained=pretrained)


def _transformers(name: str) -> nn.Module:
    """A model of the library's own classes: code that comes with a model is never run."""
    transformers = optional("transformers", "transformers", "text")
    remedy = "expected a folder with config.json, or a name on the hub"
    if not sys.stderr.isatty():  # which its bars are for
        transformers.utils.logging.disable_progress_bar()
    with loading(name, "Hugging Face model", remedy):
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        architecture = (config.architectures or ["AutoModel"])[0]
        if not hasattr(transformers, architecture):
            raise needs_code(name)
        return getattr(transformers, architecture).from_pretrained(name, trust_remote_code=False)


def load_weights(model: nn.Module, path: str) -> None:
    """Fill a model from safetensors or from a state dict, which is never unpickled as code."""
    if not Path(path).is_file():
        raise FormatError(f"no weights at {path}; expected a .safetensors file or a state dict")
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FormatError(
            f"{path} holds no weights that can be read safely ({first_line(error)}); save them "
            "with torch.save(model.state_dict(), ...) or as safetensors"
        ) from error
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise FormatError(f"{path} holds {type(state).__name__}; expected a dict of tensors")
    own = model.state_dict()
    misfits = [
        f"{key} is {tuple(state[key].shape)} there, {tuple(own[key].shape)} in the model"
        for key in own
        if key in state and own[key].shape != state[key].shape
    ][:1]
    for names, what in ((set(own) - set(state), "missing"), (set(state) - set(own), "unknown")):
        if names:
            misfits.append(f"{len(names)} {what}, such as {min(names)}")
    if misfits:
        raise FormatError(f"the weights in {path} do not fit the model: {'; '.join(misfits)}")
    model.load_state_dict(dict(state))
