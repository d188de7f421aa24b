"""What some do not find in the processes of tests, others find."""

from __future__ import annotations

import gc
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from light_imports import LARGE, UNUSED


@pytest.mark.parametrize(("name", "importer"), [(name, importer) for name in UNUSED for importer in UNUSED[name]])
def test_who_has_no_use_for_it_alone_does_not_find_it(
    monkeypatch: pytest.MonkeyPatch, name: str, importer: str
) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
        exec(f"import {name}", {"__name__": f"{importer}module"})


LAZY = """
import sys
import light_imports
light_imports.install()
from types import ModuleType

exec("import scipy.stats", {"__name__": "sklearn.utils.fixes"})
assert "scipy.stats._stats_py" not in sys.modules
assert float(sys.modules["scipy.stats"].norm.cdf(0)) == 0.5
assert "scipy.stats._stats_py" in sys.modules and type(sys.modules["scipy.stats"]) is ModuleType
"""


def test_what_scikit_learn_imports_is_executed_when_it_is_used() -> None:
    pytest.importorskip("scipy")
    subprocess.run([sys.executable, "-c", LAZY], check=True, timeout=60)


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
    import other

    assert (jax.enabled, other.enabled, gc.isenabled()) == (False, True, True)
