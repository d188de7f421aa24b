"""Export of torch modules, and of Keras models on torch: as an ONNX file, or as a program of `torch.export`.

The module is traced once, for any number of rows. A net of one input takes a tensor, any other a dict of them by name.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hopyard.frameworks.torch.losses import outputs_of
from hopyard.frameworks.torch.tensors import outputs_to_numpy, tensors
from hopyard.ports.frameworks import Export

CALLED_BY = "inputs"
"""The argument of `Net.forward`, by which torch knows the shapes of what it is called with."""


class Net(torch.nn.Module):
    """A module in evaluation mode that is called as `predict` calls it, with a tensor or a dict of tensors.

    Args:
        module: has the parameters.
        call: returns the outputs for such inputs.
    """

    def __init__(self, module: torch.nn.Module, call: Callable[[Any], Any]) -> None:
        super().__init__()
        self.module = module
        self._call = call
        self.eval()

    def forward(self, inputs: Any) -> Any:
        """Return the outputs."""
        return self._call(inputs)


def program_file(net: Net, path: Path, inputs: Any) -> None:
    """Write a `.pt2` file, which `torch.export.load` reads. `inputs`: two rows, an array or a dict of arrays."""
    content = io.BytesIO()  # torch's own writer of files aborts the process where a disk is full
    torch.export.save(_traced(net, inputs), content)
    path.write_bytes(content.getbuffer())


def onnx_file(net: Net, path: Path, inputs: Any) -> None:
    """Write an ONNX file. Its inputs have the names of the data's, a single one is "inputs"; its outputs those that
    `predict` gives them, a single one is "outputs". Weights above 2 GB are in a second file beside it."""
    with torch.no_grad():
        outputs = outputs_to_numpy(net(tensors(inputs, torch.device("cpu"))))
    names = list(outputs) if isinstance(outputs, dict) else ["outputs"]
    nested = isinstance(outputs, dict) and any(isinstance(value, dict) for value in outputs.values())
    with _quiet_log():
        written = torch.onnx.export(
            _traced(net, inputs),
            dynamo=True,
            verbose=False,
            input_names=list(inputs) if isinstance(inputs, dict) else [CALLED_BY],
            output_names=None if nested else names,
            dynamic_shapes=_shapes(inputs),
        )
        assert written is not None
        written.save(path)


def _traced(net: Net, inputs: Any) -> Any:
    """Return the program of a net."""
    example = tensors(inputs, torch.device("cpu"))
    return torch.export.export(net, (example,), dynamic_shapes=_shapes(inputs), strict=False)


def _shapes(inputs: Any) -> dict[str, Any]:
    """Return which axes have any length: the first of each input, the same in all."""
    rows = {0: torch.export.Dim("batch")}
    return {CALLED_BY: dict.fromkeys(inputs, rows) if isinstance(inputs, dict) else rows}


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Suppress the warnings of torch's exporter about operators of packages that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _net(trainable: Any) -> Net:
    """Return the module of a `Model`, called as the Model calls it, in the precision of its parameters."""
    module, loss = trainable.module, trainable.loss
    return Net(module, lambda inputs: outputs_of(module, inputs, loss))


EXPORTS = {
    ".onnx": Export(lambda trainable, path, inputs: onnx_file(_net(trainable), path, inputs), ("onnx", "onnxscript")),
    ".pt2": Export(lambda trainable, path, inputs: program_file(_net(trainable), path, inputs)),
}
