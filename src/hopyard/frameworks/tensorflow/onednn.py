"""TensorFlow says that oneDNN is on in the midst of loading its libraries, before it reads its log level (2.21).

Only another arithmetic would keep it from that (TF_ENABLE_ONEDNN_OPTS=0). So, where it is to be quiet, what is written
to standard error while one of its libraries is loaded is held back until it is loaded, and then goes there without
these lines. Nothing is held back where TensorFlow leaves oneDNN off: on a processor that is too old for it, a library
ends the process, and says why.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType

_SAID = re.compile(
    rb"(WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR\n)?"
    rb"[^\n]*\] oneDNN custom operations are on\.[^\n]*\n"
)
_FLAGS = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
"""Of a processor on which TensorFlow turns oneDNN on. Source: TensorFlow, tensorflow/core/util/port.cc,
DefaultOneDnnPolicy."""


def hush() -> None:
    """Before TensorFlow is imported."""
    if expected() and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def expected() -> bool:
    """Whether TensorFlow will turn oneDNN on in this process."""
    asked = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower()
    if asked:
        return asked in ("1", "true")
    if platform.machine() == "aarch64":
        return True  # of some: which, /proc/cpuinfo says in numbers only
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not _FLAGS.isdisjoint(flags)


@contextmanager
def held_back() -> Iterator[None]:
    """What anybody writes to file descriptor 2 goes there at the end, without TensorFlow's lines."""
    with TemporaryFile() as held:
        error = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(error, 2)
            os.close(error)
            held.seek(0)
            if rest := _SAID.sub(b"", held.read()):
                os.write(2, rest)


class _Finder:
    """Finds TensorFlow's libraries, where the import system finds them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("tensorflow."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and type(spec.loader) is ExtensionFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(ExtensionFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        with held_back():
            return super().create_module(spec)
