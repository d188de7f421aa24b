"""Suppresses TensorFlow's message that oneDNN is on, which it logs while it loads its libraries, before it reads its
log level (2.21).

The only setting that would suppress it also changes the arithmetic (TF_ENABLE_ONEDNN_OPTS=0). So, where TensorFlow is
to be quiet, standard error is buffered while one of its libraries is loaded, and then written without these lines.
Nothing is buffered where TensorFlow leaves oneDNN off: on a processor that is too old for it, a library ends the
process, and says why.
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

_MESSAGE = re.compile(
    rb"(WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR\n)?"
    rb"[^\n]*\] oneDNN custom operations are on\.[^\n]*\n"
)
_FLAGS = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
"""TensorFlow turns oneDNN on for a processor with any of these. Source: TensorFlow, tensorflow/core/util/port.cc,
DefaultOneDnnPolicy."""


def hush() -> None:
    """Installs the filter; to be called before TensorFlow is imported."""
    if expected() and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def expected() -> bool:
    """Whether TensorFlow will turn oneDNN on in this process."""
    setting = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower()
    if setting:
        return setting in ("1", "true")
    if platform.machine() == "aarch64":
        return True  # on some processors; /proc/cpuinfo identifies them by numbers only
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return not _FLAGS.isdisjoint(flags)


@contextmanager
def filtered_stderr() -> Iterator[None]:
    """A context manager that buffers file descriptor 2 and, at its end, writes it without TensorFlow's lines."""
    with TemporaryFile() as buffer:
        stderr = os.dup(2)
        os.dup2(buffer.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            buffer.seek(0)
            if output := _MESSAGE.sub(b"", buffer.read()):
                os.write(2, output)


class _Finder:
    """Finds TensorFlow's libraries where the import system finds them, and wraps their loader."""

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
        with filtered_stderr():
            return super().create_module(spec)
