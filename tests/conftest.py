"""`jobs.py` beside the tests, and a data cache that is not the user's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(data_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For this process, whatever the system's rule for caches is, and for those that it starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(data_cache))
    monkeypatch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """size ("1m") → a file system of its own of that size; needs the right to mount."""
    made = []

    def mount(size: str) -> Path:
        place = tmp_path / f"disk-{len(made)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except OSError as error:
            pytest.skip(f"no file system may be mounted here: {error}")
        if done.returncode:
            pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
        made.append(place)
        return place

    yield mount
    for place in made:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=10)
