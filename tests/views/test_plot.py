"""The pictures of a search: what is drawn, one offline page, PNG."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hopyard as hy
from hopyard.core.runs.events import Proposed
from hopyard.core.runs.machine import Machine
from hopyard.errors import SpecError, UsageError
from hopyard.spec import Objective, RunSpec
from hopyard.views import plot
from jobs import dataset, linear

SPEC = RunSpec(epochs=3, partitions=2, validation=1, metric="val_loss", mode="min", also=(Objective("size", "max"),))
CONFIGS = [
    {"lr": 0.001, "act": "relu", "width": 8},
    {"lr": 0.1, "act": "</script><b>", "width": 8},
    {"lr": 0.01, "width": 16},
    {"lr": 0.01, "act": "relu", "width": 8},
]


def machine(configs: Any = CONFIGS, spec: RunSpec = SPEC) -> Machine:
    """One whose trials have as many epochs as their number says; the last value of trial 2 is NaN."""
    machine = Machine(spec)
    for number, config in enumerate(configs):
        machine.apply(Proposed(trial=number, config=config))
        trial = machine.trials[number]
        trial.reached = 2 * number
        for epoch in range(number):
            value = math.nan if (number, epoch) == (2, 1) else 1.0 / (number + epoch)
            trial.add_epoch(epoch, {"val_loss": value, "size": float(number)}, spec)
        trial.status = ("waiting", "stopped", "paused", "completed")[number]
        trial.reason = "rung 1: 3rd of 3" if number == 1 else ""
    return machine


def data(page: str) -> Any:
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]


def test_the_contents_of_a_plot() -> None:
    drawn = plot.picture(machine())
    assert [(each.trial, each.far, each.values) for each in drawn.curves] == [
        (3, 3.0, [(1, 1 / 3), (2, 1 / 4), (3, 1 / 5)]),
        (2, 2.0, [(1, 1 / 2)]),
        (1, 1.0, [(1, 1.0)]),
        (0, 0.0, []),
    ]
    assert [each.shade for each in drawn.curves] == [1.0, 0.5, 0.0, None]
    assert (drawn.low, drawn.high, drawn.front) == (0.2, 1.0, [3])
    assert [axis.name for axis in drawn.axes] == ["lr", "act", "width", "val_loss"]
    assert [text for _, text in drawn.axes[0].marks] == ["0.001", "0.00316", "0.01", "0.0316", "0.1"]  # logarithmic
    assert [text for _, text in drawn.axes[2].marks] == ["8", "10", "12", "14", "16"]
    assert drawn.curves[1].places == pytest.approx([0.5, None, 1.0, 0.375])
    assert drawn.curves[3].places[-1] is None


def test_axes_go_by_the_distributions_of_the_space() -> None:
    space = hy.Space(lr=hy.loguniform(0.001, 0.01), width=hy.choice([64, 256, 1024]), depth=hy.randint(1, 5), act="a")
    configs = [
        {"lr": 0.002, "width": 1024, "depth": 2},
        {"lr": 0.005, "width": 64, "depth": 4},
        {"lr": 0.004, "width": 64, "depth": 3},
    ]
    lr, width, depth, _ = plot.picture(machine(configs), space.parameters).axes
    assert [text for _, text in lr.marks] == ["0.001", "0.00178", "0.00316", "0.00562", "0.01"]
    assert lr.marks[2][0] == pytest.approx(0.5), "the axis is logarithmic, though the values span one power of ten"
    assert width.marks == [(0.0, "64"), (0.5, "256"), (1.0, "1024")]
    assert depth.marks == [(0.0, "1"), (1 / 3, "2"), (2 / 3, "3"), (1.0, "4")]
    open_axis = plot.picture(machine([{"n": 1000}, {"n": 5000}, {"n": 3000}])).axes[0]
    assert [text for _, text in open_axis.marks] == ["1000", "2000", "3000", "4000", "5000"]


def test_the_page_holds_all_needs_no_network_and_escapes() -> None:
    page = plot.html(machine(), "search <x>")
    assert "search &lt;x&gt;" in page and "<x>" not in page and "{{" not in page
    assert page.count("</script>") == 2
    assert not re.search(r"(src|href)=|url\(|@import|fetch\(|https?:(?!//www.w3.org/2000/svg)", page)
    drawn = data(page)
    assert drawn["curves"][2]["text"] == "lr=0.1 act=</script><b> width=8"
    assert drawn["curves"][2]["reason"] == "rung 1: 3rd of 3"


def test_placeholders_in_values_are_text() -> None:
    """Bug: a text {{data}} was replaced by all data."""
    texts = ["{{title}}, {{data}}", "{{data}}, {{title}}", "{{data}}, {{summary}}"]
    page = plot.html(machine([{"act": text} for text in texts]), "{{summary}}")
    assert "<title>{{summary}}</title>" in page
    assert re.search(r"best: trial \d, act=\{\{\w+\}\}, \{\{\w+\}\}\.", page)
    assert {curve["text"] for curve in data(page)["curves"]} == {f"act={text}" for text in texts}


def test_before_anything_happened_and_with_one_trial() -> None:
    for configs in ([], CONFIGS[:1]):
        drawn = data(plot.html(machine(configs)))
        assert [each["values"] for each in drawn["curves"]] == [[] for _ in configs]


def test_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.png(machine(), tmp_path / "a.png")
    plot.png(machine([]), tmp_path / "empty.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_no_text_of_a_png_lies_on_another() -> None:
    """Bug: those of rungs, of many values and of long names did; and a "$" began a formula, with its errors."""
    matplotlib = pytest.importorskip("matplotlib.figure")
    spec = msgspec.structs.replace(SPEC, epochs=81, metric=f"val_{'mean_' * 12}loss", stop=hy.ASHA(2))
    draws = random.Random(0)
    values: dict[str, Any] = {
        **{f"real{n}": draws.random for n in range(5)},
        "lists$": lambda: [draws.randrange(99)] * 9,
        "choice": lambda: f"{draws.randrange(99)}-long $a_{{b$-names",
    }
    searched = Machine(spec)
    for number in range(40):
        config = {f"hyperparameter_of_the_second_stage_{name}": value() for name, value in values.items()}
        searched.apply(Proposed(trial=number, config=config))
        searched.trials[number].add_epoch(0, {spec.metric or "": draws.random(), "size": draws.random()}, spec)
    drawn = plot.picture(searched)
    assert len(drawn.rungs) == 7 and len({line for *_, line in drawn.rungs}) > 1
    figure = plot.draw(matplotlib.Figure(layout="constrained"), drawn, "what is $x_{$ best of a run " * 40)
    figure.draw_without_rendering()
    texts = [figure._suptitle, *[text for axes in figure.axes for text in _texts(axes)]]
    boxes = [(text, text.get_window_extent()) for text in texts if text.get_text().strip()]
    for number, (text, box) in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1, text
        for other, its in boxes[:number]:
            slanted = 30 in (text.get_rotation(), other.get_rotation())  # boxes of these meet, they do not
            assert slanted or not box.overlaps(its), (text, other)


def _texts(axes: Any) -> list[Any]:
    """All that is written in or at axes."""
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
        texts += [label for place, label in ticks if low <= place <= high]
    return texts


def test_png_without_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] + ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"pip install hopyard\[plot\]"):
        plot.png(machine(), tmp_path / "a.png")


def test_a_run_draws_its_rungs(tmp_path: Path) -> None:
    run = hy.select(
        linear, hy.Space(lr=hy.loguniform(1e-3, 1.0)), dataset(), search=hy.Random(4), epochs=4, metric="val_loss",
        mode="min", stop=hy.ASHA(2, sync=True), engine=hy.Inline(), directory=tmp_path / "run",
    )  # fmt: skip
    page = run.plot()
    assert page == run.directory / "plot.html"
    drawn = data(page.read_text())
    assert drawn["rungs"] == [[1.0, "4 → 2", 0], [2.0, "2 → 1", 0]]
    assert [each["far"] for each in drawn["curves"]] == [4.0, 2.0, 1.0, 1.0]
    assert [text for _, text in drawn["axes"][0]["marks"]][::4] == ["0.001", "1"], "the bounds of the distribution"
    assert hy.load(run.directory).plot(tmp_path / "again.html").read_text() == page.read_text()
    with pytest.raises(SpecError, match=r"a\.jpg'\): .*\.html, \.png, \.pdf, \.svg$"):  # bug: it was HTML
        run.plot(tmp_path / "a.jpg")
    assert run.plot(tmp_path / "A.PDF").read_bytes().startswith(b"%PDF")
    with pytest.raises(SpecError, match=r"plot\(path='.*none/a\.html'\): No such file"):
        run.plot(tmp_path / "none" / "a.html")
