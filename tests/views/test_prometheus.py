import pytest

from hopyard.core.runs.machine import fold
from hopyard.views.prometheus import HOST, RUN, textfile
from hopyard.views.report import facts


def summary(lines, directory="/runs/a"):
    machine = fold(lines)
    return {"directory": directory, **facts(lines, machine, machine.status, {"train": [10] * 4, "validate": [5] * 2})}


def samples(text):
    """Parsed as Prometheus does: family → its type, (sample, labels) → value."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    kinds = {family.name: family.type for family in families}
    found = [sample for family in families for sample in family.samples]
    values = {(each.name, frozenset(each.labels.items())): each.value for each in found}
    assert len(values) == len(found)
    return kinds, values


def test_each_number_of_the_summary_is_a_sample(rough):
    told = summary(rough)
    kinds, values = samples(textfile(told))
    own = frozenset({("directory", "/runs/a")})
    for key, (name, _) in RUN.items():
        expected = len(told[key]) if isinstance(told[key], list) else told[key]
        assert values[f"hopyard_{name}", own] == expected
    for host, record in told["hosts"].items():
        for key, (name, _) in HOST.items():
            assert values[f"hopyard_{name}", own | {("host", host)}] == record[key]
    assert values["hopyard_lost_workers_total", own] == 1 and values["hopyard_resumes_total", own] == 1
    states = {dict(labels)["status"]: value for (name, labels), value in values.items() if name == "hopyard_trials"}
    assert sum(states.values()) == told["trials"] and states["failed"] == 1
    assert values["hopyard_run_info", own | {("status", told["status"])}] == 1
    for name, kind in kinds.items():
        assert kind in ("counter", "gauge") and name.startswith("hopyard_")


def test_what_is_not_known_has_no_sample(good):
    told = summary(good[:1])
    assert told["idle_share"] is None
    text = textfile(told)
    assert "hopyard_idle_ratio{" not in text and "None" not in text
    assert "hopyard_units_total" in text


def test_labels_are_escaped(good):
    directory = '/runs/a "b"\\c\nd'
    _, values = samples(textfile(summary(good, directory)))
    assert {dict(labels)["directory"] for _, labels in values} == {directory}


def test_every_total_of_the_summary_is_there(good):
    """A number that the summary gets later needs a name here."""
    words = {"directory", "status", "closed", "search_error", "hosts"}
    by_status = {"trials", "completed", "stopped", "paused", "failed"}
    told = summary(good)
    assert set(told) - words - by_status == set(RUN)
    assert set(next(iter(told["hosts"].values()))) == set(HOST)
