import json
from collections import Counter

from hopyard.core.runs.events import Began, Dispatch, Done, Formed, Joined
from hopyard.sim.world import World, lengths
from hopyard.spec import Part, RunSpec, Unit
from hopyard.views.timeline import chart
from hopyard.views.trace import chrome


def events(lines):
    found = json.loads("".join(chrome(iter(lines))))
    assert set(found) == {"displayTimeUnit", "traceEvents"}
    return found["traceEvents"]


def units(found):
    return [event for event in found if event["ph"] == "X" and event["cat"] != "check"]


def seconds(found):
    """Worker → the seconds of its units."""
    total = Counter()
    for event in units(found):
        total[event["tid"]] += event["dur"] / 1e6
    return total


def test_the_sums_are_those_of_the_timeline(rough):
    found, spans = events(rough), []
    timeline = chart(rough, spans.append)
    for worker in timeline.workers:
        assert abs(seconds(found)[worker.slot] - worker.busy) < 1e-4 * len(spans)
    count = Counter(event["args"]["outcome"] for event in units(found))
    assert count == Counter(span.outcome for span in spans if span.kind != "check")
    assert count["lost"] and count["failed"]
    done = [event["args"] for event in units(found) if event["args"]["outcome"] == "done"]
    assert sum(args.get("hop_bytes", 0) for args in done) == timeline.hop_bytes
    assert sum(args.get("again", False) for args in (event["args"] for event in units(found))) > 0


def test_hosts_are_processes_and_workers_are_threads(rough):
    found = events(rough)
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in found if e["ph"] == "M"}
    processes = {pid: name for (kind, pid, _), name in names.items() if kind == "process_name"}
    assert processes == {0: "run", 1: "node0", 2: "node1"}
    threads = {(pid, tid): name for (kind, pid, tid), name in names.items() if kind == "thread_name"}
    for worker in chart(rough).workers:
        (place,) = [place for place in threads if place[1] == worker.slot]
        assert processes[place[0]] == worker.host and threads[place] == f"worker {worker.slot}"
    assert {(event["pid"], event["tid"]) for event in units(found)} <= set(threads)


def test_marks_are_instants(rough):
    found = [event for event in events(rough) if event["ph"] == "i"]
    timeline = chart(rough)
    assert [event["name"] for event in found] == [mark.what for mark in timeline.marks]
    assert [event["args"]["text"] for event in found] == [mark.text for mark in timeline.marks]
    scopes = {event["name"]: event["s"] for event in found}
    assert scopes["lost"] == scopes["failed"] == "t" and scopes["resumed"] == "g"
    lasts = max(event["ts"] + event.get("dur", 0) for event in events(rough) if "ts" in event)
    assert lasts <= 1e6 * timeline.elapsed(timeline.at) + 1


def test_every_member_of_a_gang_is_busy():
    unit = Unit(1, 0, "train", 0, (0,), None)
    lines = [
        Began(at=0, spec=RunSpec(epochs=1, partitions=1, validation=0)),
        *(Joined(at=1, slot=slot, host=f"h{slot}", pid=1) for slot in range(3)),
        Formed(at=1, slot=1, members=(1, 2)),
        Dispatch(at=2, slot=1, unit=unit),
        Done(at=5, slot=1, lease=1, parts=(Part(0, {"loss": (1.0, 2.0)}, 1.0),), seconds=3.0),
    ]
    assert seconds(events(lines)) == {1: 3.0, 2: 3.0}


def test_a_unit_at_work_lasts_until_the_newest_line(good):
    at = next(number for number, line in enumerate(good) if isinstance(line, Done))
    lines = good[:at]
    running = [event for event in units(events(lines)) if event["args"]["outcome"] == "running"]
    assert len(running) == len(chart(lines).open)
    assert {event["ts"] + event["dur"] for event in running} == {round((lines[-1].at - lines[0].at) * 1e6)}


def test_before_anything_happened(good):
    assert [event["ph"] for event in events(good[:1])] == ["M"]


def test_bytes_a_unit():
    spec = RunSpec(epochs=2, partitions=16, validation=4, trials=30, group=1)
    world = World(spec, 8, lengths(30, 0.5, 0.1, 0), keep=True)
    world.run()
    pieces = list(chrome(world.journal))
    assert len(pieces) > 1000 and max(map(len, pieces)) < 400
    assert len("".join(pieces)) < 260 * len(pieces)
