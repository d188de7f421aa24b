"""The summary of a run as text for Prometheus: what node_exporter's textfile collector reads.

Source: Prometheus' text format 0.0.4 and its naming practices: base units in the name, `_total` for what only grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

RUN = {
    "wall_seconds": ("wall_seconds_total", "Time in which a driver of the run lived"),
    "busy_seconds": ("busy_seconds_total", "Time that workers spent on units, added up over them"),
    "idle_share": ("idle_ratio", "Share of the workers' time without a unit, from the first unit to the last"),
    "thin_seconds": ("thin_seconds_total", "Time with fewer trials to train than workers"),
    "home_idle_seconds": ("home_idle_seconds_total", "Workers' time without a unit while trials waited for partitions"),
    "slots": ("slots", "Most workers at a time"),
    "units": ("units_total", "Units that ended well"),
    "partitions": ("partitions_total", "Partitions in units that ended well"),
    "redone": ("redone_partitions_total", "Partitions that were dispatched again"),
    "hop_seconds": ("hop_seconds_total", "Time in which workers took over States"),
    "hop_bytes": ("hop_bytes_total", "Bytes of States that workers took over"),
    "states": ("states_total", "States that became durable"),
    "state_bytes": ("state_bytes_total", "Bytes of States that became durable"),
    "fetched_bytes": ("fetched_bytes_total", "Bytes of rows that were brought to hosts"),
    "exchanged_bytes": ("exchanged_bytes_total", "Bytes that members of gangs sent to others"),
    "resumed": ("resumes_total", "Drivers that went on with the run"),
    "lost": ("lost_workers_total", "Workers that were lost"),
    "defects": ("defects_total", "Differences where equal bits were promised"),
    "warnings": ("warnings_total", "Different warnings of user code"),
}
"""Key of the summary → (name of the metric, help). Lists count."""
HOST = {
    "workers": ("host_workers", "Most workers of the host at a time"),
    "partitions": ("host_partitions", "Partitions in the data cache of the host"),
    "rows_bytes": ("host_rows_bytes", "Bytes of the partitions in the data cache of the host"),
    "fetched_bytes": ("host_fetched_bytes_total", "Bytes of rows that were brought to the host"),
    "states": ("host_states_total", "States that workers of the host stored"),
    "state_bytes": ("host_state_bytes_total", "Bytes of States that workers of the host stored"),
    "hop_bytes": ("host_hop_bytes_total", "Bytes of States that workers of the host took over"),
    "exchanged_bytes": ("host_exchanged_bytes_total", "Bytes that members of gangs on the host sent to others"),
    "peak_bytes": ("host_worker_peak_bytes", "Most memory of one worker of the host"),
}
"""The same of the record of each host."""
ENDED = ("completed", "stopped", "paused", "failed")


def textfile(summary: Mapping[str, Any]) -> str:
    """Return the text for `Run.summary()`. Each sample has the label `directory`, which tells runs apart."""
    own = {"directory": summary["directory"]}
    counts = {name: summary[name] for name in ENDED}
    counts["active"] = summary["trials"] - sum(counts.values())
    trials = [({**own, "status": name}, number) for name, number in counts.items()]
    families = [
        *_family("run_info", "1, with the status of the run as a label", [({**own, "status": summary["status"]}, 1)]),
        *_family("trials", "Trials by status; active ones train or wait for a worker", trials),
    ]
    for key, (name, text) in RUN.items():
        families += _family(name, text, [(own, summary[key])])
    for key, (name, text) in HOST.items():
        hosts = summary["hosts"].items()
        families += _family(name, text, [({**own, "host": host}, record[key]) for host, record in hosts])
    return "\n".join([*families, ""])


def _family(name: str, text: str, samples: Iterable[tuple[Mapping[str, str], Any]]) -> Iterator[str]:
    """Yield the lines of one metric. Values that are not known, None, are left out."""
    name = f"hopyard_{name}"
    yield f"# HELP {name} {text}."
    yield f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
    for labels, value in samples:
        if value is not None:
            pairs = ",".join(f'{label}="{_escaped(each)}"' for label, each in labels.items())
            yield f"{name}{{{pairs}}} {len(value) if isinstance(value, list) else value}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
