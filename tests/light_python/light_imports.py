"""Makes TensorFlow and scikit-learn lighter to import, by a third, in the processes of tests and those that they start.

Keras, TensorFlow Lite and scikit-learn import others of scikit-learn, matplotlib, pandas, IPython and JAX where they
are installed, for wrappers, charts and conversions that no test uses. Here they do not find them; others do. And the
garbage collector is off while a framework is imported.

`conftest.py` puts this folder into PYTHONPATH. A process that has another one imports all that is installed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

UNUSED = {
    "sklearn": ("keras.",),
    "matplotlib": ("keras.",),
    "pandas": ("keras.", "sklearn."),
    "IPython": ("keras.",),
    "jax": ("tensorflow.lite.", "keras.src.callbacks."),
}
"""Module → whose modules do not find it."""
LARGE = frozenset({"tensorflow", "keras", "torch", "torch._dynamo", "jax"})
"""What is imported without the garbage collector."""


class Finder:
    """Comes before the finders of the import system, and leaves to them all that is not named above."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in UNUSED and _importer().startswith(UNUSED[fullname]):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        if fullname in LARGE and gc.isenabled():
            spec = PathFinder.find_spec(fullname, path)
            if spec is not None and spec.loader is not None:
                _without_garbage_collector(spec.loader)
            return spec
        return None


def _importer() -> str:
    """Return the name of the module whose code imports another one."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("importlib._bootstrap", "importlib"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _without_garbage_collector(loader: object) -> None:
    execute = loader.exec_module  # type: ignore[attr-defined]

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # type: ignore[attr-defined]
        gc.disable()
        try:
            execute(module)
        finally:
            gc.enable()

    loader.exec_module = exec_module  # type: ignore[attr-defined]


def install() -> None:
    """Have the imports of this process be light."""
    if not any(type(finder).__name__ == "Finder" and type(finder).__module__ == __name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
