"""Networks in ONNX files, run by ONNX Runtime.

Predictions come from a session of the file as it is. Layers come from a second session of the same
graph with their tensors as further outputs: asking for these changes what is fused, so the numbers
there may differ a little from those of the first. Tensors that exist as integers alone are read
through a node that dequantises them, which leaves the fused operators around them as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import DataError, FormatError, first_line, import_optional
from .onnx_graph import OnnxGraph, as_tensor
from .runtime import OUTPUTS, LayerCall, Runtime

_NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
_MIXES = {"DynamicQuantizeLinear"}  # its scale is that of the whole batch
_MSG_MIXES = (
    "it is quantised dynamically: the scale of its activations is that of a whole batch, so "
    "results depend on which samples share one"
)
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_READ = "resemblance: "  # begins the names of outputs that are added


class OnnxModel(Runtime):
    """A network in an ONNX file.

    Args:
        path: the file.
        provider: the execution provider, "CUDAExecutionProvider" or just "cuda"; None takes the
            CPU's.
    """

    def __init__(self, path: str | Path, provider: str | None = None) -> None:
        path = Path(path)
        onnx = import_optional("onnx", "onnx", "onnx")
        self._engine = import_optional("onnxruntime", "onnxruntime", "onnx")
        if not path.is_file():
            raise DataError(f"no file at {path}; expected an ONNX model")
        proto, arrays = _read_file(onnx, path)
        self._providers = [_provider_name(self._engine, provider)]
        self._folder = str(path.parent.resolve())
        self._session = self._start(str(path), path)
        graph = OnnxGraph(proto, arrays)
        found = graph.layers()
        calls = found.calls
        if not any(call.weights for call in calls):  # as where all of it is one branch
            calls = [LayerCall(OUTPUTS, 1, nn.Identity, None, graph.outputs[0], 0, 1)]
        rest = {f"of {name}": as_tensor(arrays[name]) for name in arrays.keys() - graph.owned}
        super().__init__(str(path), calls, lost=found.lost, weights=dict(sorted(rest.items())))
        self.name = path.stem
        self._proto, self._graph = proto, graph
        self._readers: dict[frozenset[str], Any] = {}
        if any(node.op_type in _MIXES for node in proto.graph.node):
            self.mixes_samples = _MSG_MIXES
        self._inputs = {x.name: x for x in self._session.get_inputs()}

    def run(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        outputs = self._run(self._session, inputs, named, None)
        names = [output.name for output in self._session.get_outputs()]
        return outputs[0] if len(outputs) == 1 else dict(zip(names, outputs, strict=True))

    def read(
        self, inputs: Sequence[Any], named: Mapping[str, Any], names: Collection[str]
    ) -> dict[str, Tensor]:
        wanted = frozenset(names)
        if wanted not in self._readers:
            self._readers.clear()
            self._readers[wanted] = self._session_with(sorted(wanted))
        session, at = self._readers[wanted]
        values = self._run(session, inputs, named, [at[name] for name in sorted(wanted)])
        return dict(zip(sorted(wanted), values, strict=True))

    # -- sessions --------------------------------------------------------------------------------

    def _start(self, model: str | bytes, path: Path) -> Any:
        options = self._engine.SessionOptions()
        options.log_severity_level = 3  # errors, which are raised as well
        options.intra_op_num_threads = torch.get_num_threads()
        if isinstance(model, bytes):
            options.add_session_config_entry(_EXTERNAL_FOLDER, self._folder)
        try:
            return self._engine.InferenceSession(model, options, providers=self._providers)
        except Exception as error:  # each kind of fault has its own class, none in common
            raise FormatError(
                f"ONNX Runtime cannot run {path} ({first_line(error)}); check the file with "
                "onnx.checker, or export the network again"
            ) from error

    def _session_with(self, names: Sequence[str]) -> tuple[Any, dict[str, str]]:
        """A session that also returns these tensors, and the names under which it does."""
        import onnx

        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        at = {}
        outputs = {output.name for output in proto.graph.output}
        for i, name in enumerate(names):
            integers = self._graph.quantised(name)
            at[name] = name
            if integers is not None:
                at[name] = f"{_READ}{i}"
                arguments = [integers.name, integers.scale, integers.zero_point]
                proto.graph.node.append(
                    onnx.helper.make_node("DequantizeLinear", arguments, [at[name]], f"{_READ}{i}")
                )
            if at[name] not in outputs:
                proto.graph.output.append(onnx.ValueInfoProto(name=at[name]))
        return self._start(proto.SerializeToString(), Path(self.source)), at

    # -- batches ---------------------------------------------------------------------------------

    def _run(
        self, session: Any, inputs: Sequence[Any], named: Mapping[str, Any], names: Any
    ) -> list[Tensor]:
        """The outputs of a session for a batch, in runs of as many samples as it takes."""
        feeds = self._feeds(inputs, named)
        fixed = self._fixed_batch()
        if fixed is None:
            return [torch.from_numpy(x) for x in self._outputs(session, names, feeds)]
        count = max(len(x) for x in feeds.values())
        parts = []
        for start in range(0, count, fixed):
            part = {name: x[start : start + fixed] for name, x in feeds.items()}
            short = fixed - min(len(x) for x in part.values())
            if short:
                part = {
                    k: np.concatenate([x, np.repeat(x[-1:], short, 0)]) for k, x in part.items()
                }
            parts.append(self._outputs(session, names, part))
        whole = (np.concatenate(values)[:count] for values in zip(*parts, strict=True))
        return [torch.from_numpy(np.ascontiguousarray(x)) for x in whole]

    def _outputs(self, session: Any, names: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        try:
            return list(session.run(names, feeds))
        except Exception as error:  # as above
            raise DataError(
                f"ONNX Runtime fails on a batch ({first_line(error)}); {self._expected()}"
            ) from error

    def _feeds(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """A batch by the names of the file's inputs, in the types that it takes."""
        if len(inputs) == 1 and isinstance(inputs[0], tuple | list):
            inputs = inputs[0]
        given = dict(zip(self._inputs, inputs, strict=False)) | dict(named)
        missing = [name for name in self._inputs if name not in given]
        if missing or len(inputs) > len(self._inputs):
            found = ", ".join(named) or f"{len(inputs)} by position"
            raise DataError(f"{self._expected()}; found {found}")
        return {
            name: torch.as_tensor(given[name])
            .detach()
            .cpu()
            .numpy()
            .astype(_NUMPY_TYPES.get(x.type, np.float32), copy=False)
            for name, x in self._inputs.items()
        }

    def _fixed_batch(self) -> int | None:
        """How many samples a run takes, if all inputs say so."""
        sizes = {x.shape[0] if x.shape else None for x in self._inputs.values()}
        size = sizes.pop()
        return size if not sizes and isinstance(size, int) else None

    def _expected(self) -> str:
        inputs = ", ".join(f"{x.name!r} {x.shape} {x.type}" for x in self._inputs.values())
        return f"{self.source} takes {inputs}"


def _read_file(onnx: Any, path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """The model without functions, and the values of its initializers."""
    try:
        proto = onnx.load(path, load_external_data=False)
        for tensor in proto.graph.initializer:
            _check_location(tensor, path)
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        folder = str(path.parent)
        initializers = proto.graph.initializer
        arrays = {x.name: onnx.numpy_helper.to_array(x, folder) for x in initializers}
    except FormatError:
        raise
    except Exception as error:  # of protobuf, onnx and numpy
        raise FormatError(f"{path} is not a readable ONNX model ({first_line(error)})") from error
    if not proto.graph.node or not proto.graph.output:
        raise FormatError(f"{path} is an ONNX model with an empty graph")
    return proto, arrays


def _check_location(tensor: Any, path: Path) -> None:
    """Refuse weights outside of the file's folder."""
    for entry in tensor.external_data:
        if entry.key == "location":
            place = PurePosixPath(entry.value.replace("\\", "/"))
            if place.is_absolute() or ".." in place.parts:
                raise FormatError(
                    f"{path} has weights outside of its folder, at {entry.value!r}; they are not "
                    "read"
                )


def _provider_name(engine: Any, wanted: str | None) -> str:
    known = engine.get_available_providers()
    if wanted is None:
        return "CPUExecutionProvider"
    for name in known:
        if wanted.lower() in (name.lower(), name.lower().removesuffix("executionprovider")):
            return name
    raise DataError(
        f"ONNX Runtime has no execution provider {wanted!r}; this installation has "
        f"{', '.join(known)}"
    )
