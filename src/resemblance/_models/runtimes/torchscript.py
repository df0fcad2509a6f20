"""Networks in TorchScript: files that `torch.jit.save` wrote, and scripted or traced modules.

Their layers have no hooks, so what is recorded is what they return, under the name `outputs`. A
module that keeps a state from one call to the next, as of a stream, and has a method that resets it
(`reset_states`, `reset_state` or `reset`) is run on one sample at a time, each from a fresh state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._data.batches import concat_batches
from ...errors import FormatError, first_line
from ..layer_outputs import floating_tensors
from .runtime import OUTPUTS, LayerCall, Runtime

_RESETS = ("reset_states", "reset_state", "reset")


class TorchScriptModel(Runtime):
    """A scripted or traced module, or the file of one.

    Args:
        module: a `torch.jit.ScriptModule`, or the path of a file.
    """

    def __init__(self, module: torch.jit.ScriptModule | str | Path) -> None:
        source, name = type(module).__name__, getattr(module, "original_name", None)
        if isinstance(module, str | Path):
            source, name = str(module), Path(module).stem
            try:
                module = torch.jit.load(source, map_location="cpu")
            except Exception as error:  # of torch's archive reader and its compiler
                raise FormatError(
                    f"{source} is not a TorchScript file that this version of torch can read "
                    f"({first_line(error)})"
                ) from error
        assert isinstance(module, torch.jit.ScriptModule)
        module.eval()
        weights = {f"of {key}": value.detach() for key, value in module.state_dict().items()}
        layer = LayerCall(OUTPUTS, 1, nn.Identity, None, OUTPUTS, 0, 1)
        super().__init__(source, [layer], weights=weights)
        self.name = name
        self._script = [module]  # in a list, so that its parts are no modules of this one
        self._reset = next((r for x in _RESETS if (r := getattr(module, x, None))), None)
        self._last: Any = None

    def run(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        (module,) = self._script
        if self._reset is None:
            self._last = module(*inputs, **named)
        else:
            parts = []
            given = (x for x in (*inputs, *named.values()) if isinstance(x, Tensor) and x.ndim)
            for i in range(len(next(given, ()))):
                self._reset()
                one = [_sample(x, i) for x in inputs]
                parts.append(module(*one, **{k: _sample(x, i) for k, x in named.items()}))
            self._reset()
            self._last = concat_batches(parts)
        return self._last

    def read(
        self, inputs: Sequence[Any], named: Mapping[str, Any], names: Collection[str]
    ) -> dict[str, Tensor]:
        return {name: next(floating_tensors(self._last)) for name in names}


def _sample(x: Any, i: int) -> Any:
    return x[i : i + 1] if isinstance(x, Tensor) and x.ndim else x
