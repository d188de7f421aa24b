"""What some do not find in the processes of tests, others find."""

from __future__ import annotations

import gc
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from light_imports import LARGE, UNUSED


@pytest.mark.parametrize(("name", "importer"), [(name, importer) for name in UNUSED for importer in UNUSED[name]])
def test_light_imports_hide_unused_packages(monkeypatch: pytest.MonkeyPatch, name: str, importer: str) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
        exec(f"import {name}", {"__name__": f"{importer}module"})


def test_the_garbage_collector_is_off_while_a_framework_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "jax.py").write_text("import gc\nenabled = gc.isenabled()\n")
    (tmp_path / "other.py").write_text("import gc\nenabled = gc.isenabled()\n")
    assert "jax" in LARGE
    for name in ("jax", "other"):
        monkeypatch.setitem(sys.modules, name, None)  # what is imported below is taken back in the end
        del sys.modules[name]
    monkeypatch.syspath_prepend(tmp_path)
    import jax
    import other  # type: ignore[import-not-found]

    assert (jax.enabled, other.enabled, gc.isenabled()) == (False, True, True)  # type: ignore[attr-defined]
