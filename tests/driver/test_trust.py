"""A pickle that others may have written is opened only by who says that he trusts them: opening it runs code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.store.layout import Layout
from jobs import dataset, digests, select, table

pytestmark = pytest.mark.slow

REFUSED = r"all users may write (it|its folder) .*, and opening a pickle runs its code\. Copy .* trust=True"


class Trap:
    """Its pickle says that it was opened."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.sign),)


def spoil(pickle: Path, sign: Path) -> None:
    pickle.write_bytes(cloudpickle.dumps(Trap(sign)))


@pytest.fixture(params=["file", "folder"])
def loosen(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    def change(pickle: Path) -> None:
        if request.param == "file":
            pickle.chmod(0o666)
        else:
            pickle.parent.chmod(0o777)

    return change


def test_a_run(tmp_path: Path, loosen: Callable[[Path], None]) -> None:
    run = select(tmp_path / "run")
    layout, sign = Layout(run.directory), tmp_path / "opened"
    lines = layout.journal.read_bytes().splitlines(keepends=True)
    layout.journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    own = layout.recipe.read_bytes()
    spoil(layout.recipe, sign)
    loosen(layout.recipe)
    tries: list[Callable[[], Any]] = [
        lambda: hy.resume(layout.root),
        lambda: hy.load(layout.root)._inputs,
        lambda: select(layout.root, resume=True),
    ]
    before = layout.journal.read_bytes()
    for attempt in tries:
        with pytest.raises(hy.RunDirectoryError, match=REFUSED):
            attempt()
    for verb in ("resume", "replay"):
        outcome = CliRunner().invoke(app, [verb, str(layout.root)])
        assert outcome.exit_code != 0 and "pickle" in outcome.output and "--trust" in outcome.output
    assert not sign.exists() and layout.journal.read_bytes() == before
    layout.recipe.write_bytes(own)
    assert hy.load(layout.root, trust=True)._inputs.data.prepare().digest == dataset().prepare().digest
    assert digests(select(layout.root, resume=True, trust=True)) == digests(run)
    assert hy.resume(layout.root, trust=True).status == "completed"
    outcome = CliRunner().invoke(app, ["replay", str(layout.root), "--trust"])
    assert outcome.exit_code == 0, outcome.output


def test_a_model_of_a_run(tmp_path: Path, loosen: Callable[[Path], None]) -> None:
    run = select(tmp_path / "run")
    loosen(Layout(run.directory).recipe)
    x, _ = table()
    best = hy.load(run.directory).best
    for attempt in (lambda: best.predict(x), best.model):
        with pytest.raises(hy.RunDirectoryError, match=REFUSED):
            attempt()
    assert (hy.load(run.directory, trust=True).best.predict(x) == run.best.predict(x)).all()


def test_a_saved_model(tmp_path: Path, loosen: Callable[[Path], None]) -> None:
    run = select(tmp_path / "run")
    saved, sign = run.best.save(tmp_path / "saved"), tmp_path / "opened"
    own = (saved / "recipe.pkl").read_bytes()
    spoil(saved / "recipe.pkl", sign)
    loosen(saved / "recipe.pkl")
    with pytest.raises(hy.RunDirectoryError, match=REFUSED):
        hy.load_model(saved)
    assert not sign.exists()
    (saved / "recipe.pkl").write_bytes(own)
    hy.load_model(saved, trust=True)


def test_a_saved_model_is_nobody_elses_to_write_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run = select(tmp_path / "run")
        hy.load_model(run.best.save(tmp_path / "saved"))
        assert digests(hy.load(run.directory)) == digests(run)
        hy.load(run.directory).best.model()
    finally:
        os.umask(before)


def test_a_run_in_a_folder_that_others_may_write_says_so_when_it_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    select(tmp_path / "run")
    assert "its folder (mode 0777)" in caplog.text


def test_reading_needs_no_trust(tmp_path: Path) -> None:
    run = select(tmp_path / "run")
    run.directory.chmod(0o777)
    assert digests(hy.load(run.directory)) == digests(run)
    assert CliRunner().invoke(app, ["show", str(run.directory)]).exit_code == 0
