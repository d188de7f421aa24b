"""What differed between versions of TensorFlow, and now differs between versions of Keras."""

from __future__ import annotations

import tempfile
from typing import Any


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Writes a Keras model as a SavedModel with the signature "serving_default".

    Its inputs and outputs have the names that Keras 2 gave them: `<first layer>_input` of a Sequential model, the
    names of the input layers of others, and of outputs the names of their layers; so `setInputMapping` and
    `setOutputMapping` of `pipeline.TFModel` need not change with Keras 3. All workers call it: a model under a strategy
    of several workers needs them all to be read, though only the chief's is kept.

    Args:
        model: a model of Keras 3 (backend tensorflow), or of `tf_keras`.
        export_dir: folder to write; it is overwritten.
        is_chief: whether the file of this worker is kept.
    """
    if is_chief:
        _save(model, export_dir)
        return
    with tempfile.TemporaryDirectory() as folder:
        _save(model, folder)


def disable_auto_shard(options: Any) -> None:
    """Sets a `tf.data.Options` so that each worker reads all of its dataset, as one that is fed its own rows must."""
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Whether TensorFlow sees a GPU."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def _save(model: Any, folder: str) -> None:
    is_keras_2 = any(kind.__module__.partition(".")[0] == "tf_keras" for kind in type(model).__mro__)
    if is_keras_2 or not hasattr(model, "export"):
        model.save(folder, save_format="tf")
        return
    import keras
    import tensorflow as tf

    if not model.built or not getattr(model, "inputs", None):
        model.export(folder, verbose=False)  # a class of its own: Keras knows its call alone
        return
    sequential = isinstance(model, keras.Sequential)
    names = [f"{model.layers[0].name}_input"] if sequential else [tensor.name for tensor in model.inputs]
    output_names = _output_names(model)

    def serve(*inputs: Any) -> dict[str, Any]:
        outputs = model(inputs[0] if sequential else keras.tree.pack_sequence_as(model.input, inputs), training=False)
        return dict(zip(output_names, keras.tree.flatten(outputs), strict=True))

    specs = [
        tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype, name=name)
        for name, tensor in zip(names, model.inputs, strict=True)
    ]
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", serve, input_signature=specs)
    archive.write_out(folder, verbose=False)


def _output_names(model: Any) -> list[str]:
    """Return a name for each output: its layer's, numbered where one layer gives several."""
    names: list[str] = []
    for tensor in model.outputs:
        layer = tensor._keras_history.operation.name  # what Keras 2 called `output_names`
        count = sum(name == layer or name.startswith(f"{layer}_#") for name in names)
        names.append(f"{layer}_{count}" if count else layer)
    return names
