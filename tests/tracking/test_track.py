"""Which trackers a run is brought to, and what is said of how far they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.driver.runs.about import about_of
from hopyard.engines import followers
from hopyard.errors import SpecError
from hopyard.store.layout import Layout
from hopyard.text import without_passwords
from hopyard.trackers import resolved, with_password
from hopyard.tracking.progress import Progress, note, progress_of, requested_by, sentence
from jobs import select

URI = "https://me:secret@mlflow.example:5000/base"


HERE = Path.cwd()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("tensorboard", ["tensorboard"]),
        ("tensorboard=~/tb", [f"tensorboard={Path.home()}/tb"]),
        (["tensorboard=tb", "tensorboard=./tb"], [f"tensorboard={HERE}/tb"]),
        (("mlflow=sqlite:///a=b.db", "tensorboard"), [f"mlflow=sqlite:///{HERE}/a=b.db", "tensorboard"]),
        ("mlflow=sqlite:////x/a.db?timeout=3", ["mlflow=sqlite:////x/a.db?timeout=3"]),
        ("mlflow", [f"mlflow={URI}"]),
        (["mlflow=https://host/", "mlflow=https://host"], ["mlflow=https://host"]),
        ("mlflow=databricks", ["mlflow=databricks"]),
        ("mlflow=https://host#a b", ["mlflow=https://host#a b"]),
        ([], []),
    ],
)
def test_what_track_means(value: Any, expected: list[str]) -> None:
    assert resolved("track", value, {"MLFLOW_TRACKING_URI": f"{URI}/"}) == tuple(expected)


def test_the_experiment_of_the_environment_is_kept() -> None:
    environ = {"MLFLOW_TRACKING_URI": URI, "MLFLOW_EXPERIMENT_NAME": "flights/late #2"}
    assert resolved("track", ["mlflow", "mlflow=https://host#other"], environ) == (
        f"mlflow={URI}#flights%2Flate %232",
        "mlflow=https://host#other",
    )


@pytest.mark.parametrize(
    "value",
    [
        *("wandb", "tensorboard=", "", 3, ["tensorboard", None], {"mlflow": URI}, "kubeflow"),
        *(
            "tensorboard=s3://bucket/x",
            "tensorboard=\0",
            "mlflow=mlruns",
            "mlflow=htps://host",
            "mlflow=file:///x",
            "mlflow=https://",
        ),
    ],
)
def test_what_track_does_not_mean(value: Any) -> None:
    with pytest.raises(SpecError, match=r"track (=|must be) .*(must be|mlflow=URI)"):
        resolved("track", value, {})


def test_mlflow_alone_needs_a_server() -> None:
    with pytest.raises(SpecError, match="MLFLOW_TRACKING_URI is not set"):
        resolved("track", "mlflow", {})


@pytest.mark.parametrize(
    ("track", "shown"),
    [
        (f"mlflow={URI}", "mlflow=https://me@mlflow.example:5000/base"),
        ("mlflow=postgresql://u:pa/ss@h/db", "mlflow=postgresql://u@h/db"),
        ("mlflow=postgresql+psycopg2://u:p@ss:w@h/db", "mlflow=postgresql+psycopg2://u@h/db"),
        ("https://u:p@ss@h", "https://u@h"),
        ("https://u:12@ss@h", "https://u@h"),
        ("mlflow=mssql://h/db?user=u&password=secret&x=1", "mlflow=mssql://h/db?user=u&password=&x=1"),
        ("mlflow=mssql+pyodbc:///?odbc_connect=PWD%3Dsecret#flights", "mlflow=mssql+pyodbc:///?odbc_connect=#flights"),
        ("mlflow=https://h:5000/a@b", "mlflow=https://h:5000/a@b"),
        ("mlflow=https://h:5000", "mlflow=https://h:5000"),
        ("mlflow=https://u@h:5000", "mlflow=https://u@h:5000"),
        ("mlflow=sqlite:////a:b@c.db", "mlflow=sqlite:////a:b@c.db"),
        ("tensorboard=/a:b@c", "tensorboard=/a:b@c"),
    ],
)
def test_passwords_are_left_out(track: str, shown: str) -> None:
    assert without_passwords(track) == shown


def test_a_follower_has_the_password_by_its_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = without_passwords(f"mlflow={URI}#flights")
    for given, environ in ((f"mlflow={URI}#flights", ""), (kept, URI), (kept, f"{URI}/")):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", environ)
        words, environment = followers.command(given, tmp_path)
        assert kept in words and "secret" not in " ".join(words)
        assert with_password(kept, environment) == f"{URI}#flights"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:other@elsewhere")
    assert with_password(kept, followers.command(kept, tmp_path)[1]) == kept.removeprefix("mlflow=")


def test_a_run_goes_on_with_its_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(followers, "start", lambda trackers, directory, log_of: started.append(tuple(trackers)))
    directory, own = tmp_path / "run", f"mlflow={URI}"
    select(directory, epochs=1, track=["tensorboard", own])
    kept = ("tensorboard", without_passwords(own))
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
