"""What is done once a module is imported."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hopyard.agent.import_hooks import when_imported


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a package that nobody has imported yet."""
    name = f"late_{abs(hash(tmp_path)):x}"
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("value = 1\n")
    (package / "part.py").write_text("def two():\n    return 2\n")
    (package / "broken.py").write_text("import os\nif not os.environ.get('MENDED'):\n    raise ValueError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def test_once_right_after_the_import(late: str) -> None:
    seen: list[Any] = []
    when_imported(f"{late}.part", lambda module: seen.append(module.two()))
    when_imported(f"{late}.part", lambda module: seen.append(module.__name__))
    importlib.import_module(late)
    assert seen == []
    part = importlib.import_module(f"{late}.part")
    assert seen == [2, f"{late}.part"]
    importlib.reload(part)
    assert len(seen) == 2
    assert "return 2" in inspect.getsource(part.two)


def test_now_where_it_is_there(late: str) -> None:
    module = importlib.import_module(late)
    seen: list[ModuleType] = []
    when_imported(late, seen.append)
    assert seen == [module]


def test_looking_for_a_module_does_not_load_it(late: str) -> None:
    seen: list[ModuleType] = []
    when_imported(late, seen.append)
    spec: Any = importlib.util.find_spec(late)
    assert "value = 1" in spec.loader.get_source(late) and not seen


def test_an_import_that_fails_may_come_again(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ModuleType] = []
    when_imported(f"{late}.broken", seen.append)
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module(f"{late}.broken")
    assert not seen
    monkeypatch.setenv("MENDED", "1")
    module = importlib.import_module(f"{late}.broken")
    assert seen == [module]


def test_something_else_may_stand_in_its_place(late: str) -> None:
    front = ModuleType("front")
    when_imported(late, lambda module: sys.modules.__setitem__(module.__name__, front))
    assert importlib.import_module(late) is front
