import json
import re
import sys

import pytest

from hopyard.errors import UsageError
from hopyard.sim.world import World, lengths
from hopyard.spec import RunSpec
from hopyard.views import gantt
from hopyard.views.gantt import png


def html(lines, *title):
    return "".join(gantt.html(iter(lines), *title))


def data(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_holds_all_units_and_needs_no_network(rough):
    page = html(rough, "run <x> & co")
    found = data(page)
    assert "run &lt;x&gt; &amp; co" in page and "<x>" not in page
    assert "{{" not in page
    assert not re.search(r"(src|href)=|url\(|@import|fetch\(|https?:", page)
    columns = ("length", "lane", "slot", "trial", "kind", "epoch", "first", "many", "outcome", "hop", "bytes", "values")
    assert {len(found[name]) for name in columns} == {len(found["start"])}
    assert found["start"] and found["lane"] == sorted(found["lane"])
    assert found["trials"]["0"] == "lr=0.1 width=64"
    assert found["metrics"] == ["loss", "accuracy"]
    assert {1, 2} <= set(found["outcome"])
    assert found["again"]
    assert any(re.fullmatch(r"\d→13→2\d · node[01]", lane["name"]) for lane in found["lanes"])
    assert {mark["what"] for mark in found["marks"]} >= {"lost", "failed", "resumed"}


def test_script_tags_are_escaped(play):
    lines = play(RunSpec(epochs=1, partitions=1, validation=0, trials=1), [{"name": "</script><b>"}], slots=1)
    page = html(lines)
    assert page.count("</script>") == 2
    assert data(page)["trials"]["0"] == "name=</script><b>"


def test_before_anything_happened(good):
    assert data(html(good[:1]))["start"] == []


def test_100_bytes_a_unit(play):
    world = World(
        RunSpec(epochs=2, partitions=16, validation=4, trials=100, group=1), 20, lengths(100, 0.5, 0.1, 0), keep=True
    )
    world.run()
    page = html(world.journal)
    assert len(data(page)["start"]) >= 4000
    assert len(page) < 100 * len(data(page)["start"])


def test_png(rough, tmp_path):
    pytest.importorskip("matplotlib")
    png(rough, tmp_path / "a.png")
    png(rough[:1], tmp_path / "empty.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_png_without_matplotlib_says_what_to_install(rough, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] + ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"pip install hopyard\[plot\]"):
        png(rough, tmp_path / "a.png")
