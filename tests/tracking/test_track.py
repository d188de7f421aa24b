"""Which trackers a run is brought to, and what is said of how far they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.driver.runs.about import about_of
from hopyard.engines import followers
from hopyard.engines.followers import resolved, without_password
from hopyard.errors import SpecError
from hopyard.store.layout import Layout
from hopyard.tracking.progress import Progress, note, progress_of, requested_by, sentence
from jobs import select

URI = "https://me:secret@mlflow.example:5000/base"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("tensorboard", ("tensorboard",)),
        (["tensorboard=tb", "tensorboard=tb"], (f"tensorboard={Path.cwd()}/tb",)),
        (("mlflow=sqlite:///a=b.db", "tensorboard"), ("mlflow=sqlite:///a=b.db", "tensorboard")),
        ("mlflow", (f"mlflow={URI}",)),
        ([], ()),
    ],
)
def test_what_track_means(value: Any, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    assert resolved("track", value) == expected


@pytest.mark.parametrize("value", ["wandb", "tensorboard=", "", 3, ["tensorboard", None], {"mlflow": URI}, "kubeflow"])
def test_what_track_does_not_mean(value: Any) -> None:
    with pytest.raises(SpecError, match=r'track .*"mlflow=URI"'):
        resolved("track", value)


def test_mlflow_alone_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(SpecError, match="MLFLOW_TRACKING_URI is not set"):
        resolved("track", "mlflow")


def test_passwords_are_in_no_file_and_on_no_command_line(tmp_path: Path) -> None:
    assert without_password(f"mlflow={URI}") == "mlflow=https://me@mlflow.example:5000/base"
    assert without_password("mlflow=sqlite:////a:b@c.db") == "mlflow=sqlite:////a:b@c.db"
    words, environment = followers.command(f"mlflow={URI}", tmp_path)
    assert "secret" not in " ".join(words) and environment["MLFLOW_TRACKING_URI"] == URI


def test_a_run_goes_on_with_its_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(followers, "start", lambda trackers, directory, log_of: started.append(tuple(trackers)))
    directory, own = tmp_path / "run", f"mlflow={URI}"
    select(directory, epochs=1, track=["tensorboard", own])
    kept = ("tensorboard", without_password(own))
    assert requested_by(Layout(directory)) == about_of(Layout(directory)).track == kept
    assert b"secret" not in Layout(directory).about.read_bytes()
    hy.resume(directory, epochs=2)
    hy.resume(directory, epochs=3, track="tensorboard")
    hy.resume(directory, epochs=4)
    hy.resume(directory, epochs=5, track=[])
    assert started == [("tensorboard", own), kept, ("tensorboard",), ("tensorboard",), ()]


def test_how_far_trackers_are(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.logs.mkdir()
    layout.about.write_text(json.dumps({"track": ["tensorboard", "mlflow=https://host"]}))
    note(layout, Progress("mlflow=https://host", at=100.0, status="running", problem="answered 500"))
    note(layout, Progress("kubeflow", at=160.0, status="completed"))
    (layout.logs / "tracking-other.json").write_text("torn")
    said = {
        each.track: sentence(layout, each, 160.0, "completed") for each in progress_of(layout, requested_by(layout))
    }
    goes_on = f"`hopyard track {layout.shown}` goes on"
    assert said == {
        "tensorboard": f"has nothing yet; {goes_on}",
        "mlflow=https://host": f"1 min 00 s behind: answered 500; {goes_on}",
        "kubeflow": "has all",
    }
