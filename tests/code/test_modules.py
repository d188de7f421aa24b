"""Whose a module is, and what is pickled by value."""

from __future__ import annotations

import importlib
import logging
import pickle
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

from hopyard.code.modules import is_users, users_modules
from hopyard.code.pickling import dumps

SOURCE = "WIDTH = 3\ndef recipe(config):\n    return WIDTH\n"


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Imports a module from a file below a folder on the path, and forgets it at the end."""

    def brought(name: str, source: str = SOURCE, folder: str = "src", **metadata: str) -> ModuleType:
        root = tmp_path / folder
        path = root / name / "__init__.py"
        path.parent.mkdir(parents=True)
        path.write_text(source)
        for info, text in metadata.items():
            file = root / info.replace("__", ".").replace("_", "-") / ("METADATA" if "dist" in info else "PKG-INFO")
            file.parent.mkdir()
            file.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
            (file.parent / "RECORD").write_text(f"{name}/__init__.py,,\n{file.parent.name}/RECORD,,\n")
            (file.parent / "top_level.txt").write_text(text)
        monkeypatch.syspath_prepend(root)
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return brought


def by_name(value: object, name: str) -> bool:
    """Whether its pickle needs the module."""
    data = dumps(value)
    module = sys.modules.pop(name)
    path, sys.path[:] = sys.path[:], []
    try:
        pickle.loads(data)
    except ModuleNotFoundError:
        return True
    finally:
        sys.modules[name], sys.path[:] = module, path
    return False


def test_the_users_modules_are_those_that_are_not_installed(bring: Callable[..., ModuleType]) -> None:
    bring("user_nets")
    names = {module.__name__ for module in users_modules()}
    assert "user_nets" in names
    assert not names & {"json", "numpy", "hopyard.spec", "hopyard", "pytest", "__main__"}
    assert not any(map(is_users, ["sys", "builtins", "json", "numpy.linalg", "pyspark", "importlib._bootstrap"]))
    assert is_users("__main__")


def test_they_go_by_value(bring: Callable[..., ModuleType]) -> None:
    assert not by_name(bring("user_nets").recipe, "user_nets")
    assert "user_nets" not in cloudpickle.list_registry_pickle_by_value()


def test_installed_into_a_folder_of_ones_own_goes_by_name(bring: Callable[..., ModuleType]) -> None:
    """As `pip install --target=libs` does it, for PYTHONPATH or an archive of --py-files."""
    library = bring("target_lib", folder="libs", target_lib_1__dist_info="")
    assert not is_users("target_lib")
    assert by_name(library.recipe, "target_lib")
    assert is_users(bring("beside_it", folder="libs2").__name__)


def test_build_products_beside_sources_do_not_count(bring: Callable[..., ModuleType]) -> None:
    """An editable install too: its metadata are in site-packages, its folder is the user's."""
    project = bring("my_project", my_project__egg_info="my_project\n")
    assert not by_name(project.recipe, "my_project")


def test_an_archive_with_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "deps.zip", "w") as archive:
        archive.writestr("zipped_lib/__init__.py", SOURCE)
        archive.writestr("zipped_own/__init__.py", SOURCE)
        archive.writestr("zipped_lib-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped-lib\nVersion: 1\n")
        archive.writestr("zipped_lib-1.dist-info/top_level.txt", "zipped_lib\n")
    monkeypatch.syspath_prepend(str(tmp_path / "deps.zip"))
    for name in ("zipped_lib", "zipped_own"):
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    assert [is_users("zipped_lib"), is_users("zipped_own")] == [False, True]


def test_packages_without_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `google.cloud`: folders that several distributions share, one of them perhaps the user's."""
    for folder, name in (("site-packages", "theirs"), ("libs", "bought"), ("src", "own")):
        (tmp_path / folder / "shared_space").mkdir(parents=True)
        (tmp_path / folder / "shared_space" / f"{name}.py").write_text(SOURCE)
        monkeypatch.syspath_prepend(tmp_path / folder)
    info = tmp_path / "libs" / "bought-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bought\nVersion: 1\n")
    (info / "RECORD").write_text("shared_space/bought.py,,\n")
    assert not is_users("shared_space")  # not imported yet
    for name in ("shared_space.theirs", "shared_space.bought", "shared_space.own", "shared_space"):
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    assert [is_users(f"shared_space.{name}") for name in ("theirs", "bought", "own")] == [False, False, True]


def test_a_package_not_imported_yet_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "not_yet.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_users("not_yet")
    assert not is_users("xmlrpc")
    assert "not_yet" not in sys.modules


def test_code_that_cannot_be_pickled_by_value_goes_by_name_with_a_warning(
    bring: Callable[..., ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    locked = bring(
        "locked_lib",
        "import threading\nLOCK = threading.Lock()\ndef recipe(config):\n    with LOCK:\n        return 3\n",
    )
    own = bring(
        "own_code", "import locked_lib\nfrom locked_lib import recipe as r\ndef recipe(c):\n    return r(c)\n", "b"
    )
    with caplog.at_level(logging.WARNING):
        data = dumps(own.recipe)
    assert "locked_lib cannot be pickled" in caplog.text
    assert "own_code" not in caplog.text
    assert by_name(locked.recipe, "locked_lib")
    del sys.modules["own_code"]
    assert pickle.loads(data)({}) == 3
    sys.modules["own_code"] = own


def test_the_first_reason_is_given_where_by_name_fails_too(bring: Callable[..., ModuleType]) -> None:
    nets, lock = bring("user_nets"), threading.Lock()
    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock'"):
        dumps(lambda config: (nets.recipe(config), lock))


def test_modules_registered_by_the_user_stay_registered(bring: Callable[..., ModuleType]) -> None:
    nets = bring("user_nets")
    cloudpickle.register_pickle_by_value(nets)
    try:
        dumps(nets.recipe)
        assert "user_nets" in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(nets)


@pytest.mark.slow
def test_by_several_threads_at_once(bring: Callable[..., ModuleType]) -> None:
    nets = bring("user_nets")
    expected = dumps(nets.recipe)
    wrong: list[object] = []

    def work() -> None:
        wrong.extend("by reference" for _ in range(20) if dumps(nets.recipe) != expected)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
