"""The examples as modules, and what they need."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def needs(*names: str) -> pytest.MarkDecorator:
    """A mark that skips a test where one of these modules is not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def example(path: str) -> ModuleType:
    """The example at this path as a module that nobody else can import, as `__main__` is for workers."""
    spec = importlib.util.spec_from_file_location(f"example_{Path(path).stem}", EXAMPLES / f"{path}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
