"""TensorFlow 1 programs as they were written: `import tensorflow` gives `tf.compat.v1` in this process.

`present()` is called before the user's code. It imports nothing: when TensorFlow is imported, the real one comes, what
version 2 changed is turned off, and a front is put in its place. Only who wrote for version 1 shall see version 1:
libraries that go by the same name, Keras before all, are given the real one by the front.

What has left TensorFlow since (`tf.contrib`, `tf.estimator`, and what needs Keras 2) is answered with one sentence that
says where its things are now.
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

from hopyard.agent.programs.patches.import_hooks import when_imported

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
"""What TensorFlow no longer has → the sentence that says so."""

KERAS_2 = (
    "{name} is part of Keras 2, which is the package tf_keras: install it in the version of TensorFlow "
    "(pip install --no-deps tf_keras=={version}.*) and leave TF_USE_LEGACY_KERAS unset or 1"
)


def present() -> None:
    """From now on, `import tensorflow` and `from tensorflow… import …` give version 1 in this process. Costs nothing
    until then. With tf_keras installed, `tf.keras` is Keras 2, which graphs and sessions need (TF_USE_LEGACY_KERAS=1),
    unless the environment says otherwise.

    Raises:
        ValueError: TensorFlow is imported already and has begun as version 2; says so in its own words.
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
        found = front.part(rest)
        return None if found is None else ModuleSpec(fullname, _There(found), is_package=True)


class _There(Loader):
    """Gives a module that is there already under another name."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """None: one of the import system's own, which nobody keeps (it would write its spec into ours)."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """The import system returns what stands in `sys.modules` afterwards."""
        sys.modules[module.__name__] = self._module


class _Front(ModuleType):
    """What `import tensorflow` gives. It has no attributes of its own but those that every package has."""

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
            compat=real.compat,  # of version 1 it has copies that lack internals
        )

    def __getattr__(self, name: str) -> Any:
        asking = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        if asking in NEWER:
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
        """The import system binds parts that were imported; what version 1 has by that name is not to be hidden."""
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
        found: Any = self._v1
        for name in names.split("."):
            found = getattr(found, name, None)
        return found if isinstance(found, ModuleType) else None


def _switch(real: ModuleType) -> None:
    """Put the front in TensorFlow's place."""
    importlib.import_module(f"{NAME}.compat.v2")  # under this name, while its parent is the real one
    v1 = importlib.import_module(f"{NAME}.compat.v1")
    with importlib.import_module(f"{NAME}.python.util.deprecation").silence():  # whoever calls for version 1 knows
        v1.disable_v2_behavior()
    if not _keras_2():
        with suppress(ImportError):  # TensorFlow still has cells of its own, but not the layers
            v1.nn.rnn_cell = importlib.import_module(f"{NAME}._api.v2.compat.v1.nn.rnn_cell")
    sys.modules[NAME] = _Front(real, v1)


def _keras_2() -> bool:
    asked = os.environ.get("TF_USE_LEGACY_KERAS") in {"true", "True", "1"}
    return asked and importlib.util.find_spec("tf_keras") is not None


def _keras_2_sentence(name: str) -> str:
    version = sys.modules[NAME].__version__.rpartition(".")[0]
    return KERAS_2.format(name=name, version=version)
