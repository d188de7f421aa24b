"""What other users of the host may see of a run or a program, and where the values of env= are: in no file."""

from __future__ import annotations

import copy
import io
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import hopyard as hy
import programs
from hopyard.driver.pickling import PYTHON, load
from hopyard.driver.runs.replay import replay
from hopyard.store.layout import Layout
from jobs import CONFIGS, digests, linear, select

SECRET = "a-key-that-nobody-else-may-know"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def having(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def keyed(config: dict[str, Any]) -> Any:
    assert len(os.environ["HOPYARD_TEST_KEY"]) == 31  # a pickle has the globals that a recipe uses
    return linear(config)


def test_a_run_directory_and_its_pickle_are_their_users_alone(tmp_path: Path) -> None:
    run = select(tmp_path / "parent" / "run", engine=hy.Inline())
    layout = Layout(run.directory)
    assert mode(layout.root) == 0o700 and mode(layout.recipe) == 0o600
    assert mode(tmp_path / "parent") == 0o755
    saved = run.best.save(tmp_path / "saved")
    assert mode(saved / "recipe.pkl") == 0o600
    hy.load_model(saved)


@pytest.mark.parametrize("store", ["{}", "file://{}"])
def test_states_in_a_store_are_their_users_alone(tmp_path: Path, store: str) -> None:
    """Bug: they had the modes of the umask, so that every user of the host could read the weights."""
    place = tmp_path / "parent" / "store"
    select(tmp_path / "run", store=store.format(place))
    (folder,) = place.iterdir()
    assert mode(place) == 0o755 and mode(folder) == 0o700
    assert list(folder.glob("*.safetensors"))


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o755)
    layout = Layout(select(directory, engine=hy.Inline()).directory)
    assert mode(directory) == 0o755 and mode(layout.recipe) == 0o600


@pytest.mark.slow
def test_a_program_directory_is_its_users_alone(tmp_path: Path) -> None:
    engine = hy.Local(workers=1, devices=None, env={"HOPYARD_TEST_KEY": SECRET})
    program = hy.launch(
        programs.who, roles={"worker": 1}, engine=engine, env={"OTHER_KEY": SECRET}, directory=tmp_path / "program"
    )
    assert program.wait(60).status == "completed"
    assert mode(tmp_path / "program") == 0o700
    assert having(tmp_path, SECRET) == []


def test_a_copy_of_an_engine_has_the_values_and_a_pickle_that_lacks_them_starts_nothing(tmp_path: Path) -> None:
    engine = hy.Local(workers=1, devices=None, env={"HOPYARD_TEST_KEY": SECRET})
    for copied in (copy.copy(engine), copy.deepcopy(engine)):
        assert copied.env == {"HOPYARD_TEST_KEY": SECRET}
    unpickled = pickle.loads(pickle.dumps(engine))
    with pytest.raises(hy.SpecError, match="HOPYARD_TEST_KEY are not known"):
        select(tmp_path / "run", keyed, CONFIGS[:1], engine=unpickled)
    console = Console(file=io.StringIO(), width=200)
    console.print(engine)
    assert SECRET not in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(hy.SpecError) as caught:
        hy.Local(env={"HOPYARD_TEST_KEY": SECRET.encode()})  # type: ignore[dict-item]
    assert SECRET not in str(caught.value)


@pytest.mark.slow
def test_values_of_env_are_in_no_file_and_are_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = hy.Local(workers=1, devices=None, env={"HOPYARD_TEST_KEY": SECRET})
    assert SECRET not in repr(engine)

    run = select(tmp_path / "run", keyed, CONFIGS[:2], engine=engine)
    assert having(tmp_path, SECRET) == []
    wanted = digests(run)

    layout = Layout(run.directory)
    lines = layout.journal.read_bytes().splitlines(keepends=True)
    layout.journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    before = {path: path.read_bytes() for path in layout.root.rglob("*") if path.is_file()}
    with pytest.raises(hy.SpecError, match=r"env= with HOPYARD_TEST_KEY, "):
        hy.resume(layout.root)
    with pytest.raises(hy.SpecError, match="env= with HOPYARD_TEST_KEY"):
        replay(layout.root)
    assert {path: path.read_bytes() for path in layout.root.rglob("*") if path.is_file()} == before

    monkeypatch.setenv("HOPYARD_TEST_KEY", SECRET)
    assert digests(hy.resume(layout.root)) == wanted
    monkeypatch.delenv("HOPYARD_TEST_KEY")
    assert replay(layout.root, engine=engine).different == []
    assert having(tmp_path, SECRET) == []
    assert load(layout.recipe, PYTHON).engine.env.missing == ("HOPYARD_TEST_KEY",)
