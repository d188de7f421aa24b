"""Runs TensorFlow 1 programs unchanged: `import tensorflow` gives `tf.compat.v1` in this process.

`present()` is called before the user's code. It imports nothing: when TensorFlow is imported, the real one is loaded,
version 2's behavior is turned off, and a front is put in its place. Only code written for version 1 may see version 1:
to libraries that import `tensorflow` and mean version 2, above all Keras, the front gives the real one.

For parts that TensorFlow has removed since (`tf.contrib`, `tf.estimator`, and what needs Keras 2) the error has one
sentence that says where they are now.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hopyard.agent.import_hooks import when_imported

NAME = "tensorflow"
NEWER = frozenset({NAME, "keras", "keras_hub", "tf_keras", "tensorboard", "tensorflow_datasets", "tensorflow_hub"}) | {
    "tensorflow_probability"
}
"""Packages that import `tensorflow` and mean version 2."""

GONE = {
    "contrib": (
        "tf.contrib ended with TensorFlow 1: its slim is the package tf_slim, distributions are in "
        "tensorflow_probability, rnn in tf.nn.rnn_cell, layers in tf.layers, data in tf.data, distribute and "
        "cluster_resolver in tf.distribute, summaries in tf.summary"
    ),
    "estimator": (
        "tf.estimator ended with TensorFlow 2.15: use tf.train.MonitoredTrainingSession as it does inside, tf_keras, "
        "or hopyard.fit"
    ),
    "examples": (
        "tensorflow.examples ended with TensorFlow 1: for its tutorials.mnist use tf.keras.datasets.mnist.load_data()"
    ),
}
"""Part that TensorFlow no longer has → the sentence that says so."""

KERAS_2 = (
    "{name} is part of Keras 2, which is the package tf_keras: install it in the version of TensorFlow "
    "(pip install --no-deps tf_keras=={version}.*) and leave TF_USE_LEGACY_KERAS unset or 1"
)


def present() -> None:
    """Let `import tensorflow` and `from tensorflow… import …` give version 1 in this process. It costs nothing until
    then. With tf_keras installed, `tf.keras` is Keras 2, which graphs and sessions need (TF_USE_LEGACY_KERAS=1),
    unless the environment says otherwise.

    Raises:
        ValueError: TensorFlow is imported already and has begun as version 2; the text is TensorFlow's own.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if importlib.util.find_spec("tf_keras") is not None:
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    sys.meta_path.insert(0, _Finder())
    when_imported(NAME, _switch)


class _Finder(MetaPathFinder):
    """Finds those parts of `tensorflow` that differ between the versions."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first, _, rest = fullname.partition(".")
        if first != NAME or not rest:
            return None
        part = rest.partition(".")[0]
        if part in GONE:
            raise ModuleNotFoundError(f"No module named {fullname!r}: {GONE[part]}", name=fullname)
        front = sys.modules.get(NAME)
        if not isinstance(front, _Front):
            return None
        if part == "layers" and not _keras_2():
            raise ModuleNotFoundError(f"No module named {fullname!r}: {_keras_2_sentence('tf.layers')}", name=fullname)
        module = front.part(rest)
        return None if module is None else ModuleSpec(fullname, _ExistingLoader(module), is_package=True)


class _ExistingLoader(Loader):
    """Loads a module that exists already, under another name."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def exec_module(self, module: ModuleType) -> None:
        """Put the module in the place of the empty one that Python has made; the import returns it."""
        sys.modules[module.__name__] = self._module


class _Front(ModuleType):
    """The module that `import tensorflow` gives. Its only own attributes are those that every package has."""

    def __init__(self, real: ModuleType, v1: ModuleType) -> None:
        super().__init__(NAME, v1.__doc__)
        self.__dict__.update(
            _real=real,
            _v1=v1,
            __path__=list(real.__path__),
            __spec__=real.__spec__,
            __loader__=real.__loader__,
            __file__=real.__file__,
            __package__=NAME,
            __version__=v1.__version__,
            compat=real.compat,  # version 1 has copies of it that lack internals
        )

    def __getattr__(self, name: str) -> Any:
        importer = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        if importer in NEWER:
            return getattr(self._real, name)
        if name == "__all__":
            absent = () if _keras_2() else ("layers",)
            return [public for public in dir(self._v1) if not public.startswith("_") and public not in absent]
        if name == "layers" and not _keras_2():
            raise AttributeError(_keras_2_sentence("tf.layers"))
        if hasattr(self._v1, name):
            return getattr(self._v1, name)
        if name in GONE:
            raise AttributeError(GONE[name])
        if f"{NAME}.{name}" in sys.modules:  # tf.python, tf.core, which version 1 had by accident
            return sys.modules[f"{NAME}.{name}"]
        raise AttributeError(f"tensorflow {self._v1.__version__}, presented as version 1, has no {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """The import system sets imported parts as attributes; they must not hide what version 1 has by that name."""
        if getattr(self._v1, name, None) is not value:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._v1), "compat"})

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (NAME,)

    def part(self, names: str) -> ModuleType | None:
        """The module of version 1 at `names` ("train", "nn.rnn_cell"); None where `tensorflow/` is to be searched."""
        if names.partition(".")[0] in {"compat", "keras"}:
            return None
        module: Any = self._v1
        for name in names.split("."):
            module = getattr(module, name, None)
        return module if isinstance(module, ModuleType) else None


def _switch(real: ModuleType) -> None:
    """Put the front in TensorFlow's place."""
    importlib.import_module(f"{NAME}.compat.v2")  # under this name, while its parent is the real one
    v1 = importlib.import_module(f"{NAME}.compat.v1")
    with importlib.import_module(f"{NAME}.python.util.deprecation").silence():  # the program is for version 1
        v1.disable_v2_behavior()
    if not _keras_2():
        with suppress(ImportError):  # TensorFlow still has cells of its own, but not the layers
            v1.nn.rnn_cell = importlib.import_module(f"{NAME}._api.v2.compat.v1.nn.rnn_cell")
    sys.modules[NAME] = _Front(real, v1)


def _keras_2() -> bool:
    enabled = os.environ.get("TF_USE_LEGACY_KERAS") in {"true", "True", "1"}
    return enabled and importlib.util.find_spec("tf_keras") is not None


def _keras_2_sentence(name: str) -> str:
    version = sys.modules[NAME].__version__.rpartition(".")[0]
    return KERAS_2.format(name=name, version=version)
