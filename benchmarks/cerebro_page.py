"""The table and the picture of `docs/cerebro-table.md`, from the results of `cerebro_table.py`."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE = DOCS / "cerebro-table.md", DOCS / "cerebro-table.png"
TABLE, WORSE = "## The table", "## Where hopping is worse"
"""Headings of the page above what is written into it."""
PEERS = ("tasks", "allreduce", "averaging", "servers")
MARGIN = 0.02
"""Differences up to this share are not worth a line."""
TITLES = {
    "local": "hopping, `Local`",
    "hosts": "hopping, `Hosts`",
    "spark": "hopping, `Spark`",
    "tasks": "task parallel",
    "allreduce": "synchronous",
    "averaging": "averaging",
    "servers": "parameter servers",
}
Figures = dict[str, Any]
MEGA = 1e6


def machine() -> dict[str, Any]:
    """Return what figures depend on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown",
    )
    return {"processor": model, "cores": len(os.sched_getaffinity(0))}


def best(figures: Figures, rank: int) -> str:
    """Return by epoch the smallest error in percent: of the nets' (top-1, top-5), the one of this rank."""
    epochs = zip(*[[epoch[rank] for epoch in net] for net in figures["errors"]], strict=True)
    return " / ".join(f"{100 * min(errors):.1f}" for errors in epochs)


def middle(figures: Figures, rank: int) -> str:
    epochs = zip(*[[epoch[rank] for epoch in net] for net in figures["errors"]], strict=True)
    return " / ".join(f"{100 * statistics.median(errors):.1f}" for errors in epochs)


def rows_moved(figures: Figures) -> float:
    """Return the bytes of rows that hosts were sent: what they store. Local workers map the driver's."""
    return figures["stored"] * figures["table"] if any(figures["moved"].values()) else 0.0


def with_driver(figures: Figures) -> float:
    """Return the bytes of an epoch between the driver and hosts, without the rows."""
    return max(0.0, figures["moved"]["driver"] - rows_moved(figures)) / figures["epochs"]


def accounted(figures: Figures, what: str, epochs: int) -> str:
    """Return bytes that the product itself has counted, in MB; "" where it has none."""
    count = figures["account"].get(what, 0)
    return megabytes(count / epochs) if count else ""


def megabytes(number: float) -> str:
    size = number / MEGA
    return f"{size:,.0f}" if size >= 10 else f"{size:.1f}"


TWO: dict[str, Callable[[Figures], str]] = {
    "seconds an epoch, all nets": lambda f: f"{f['seconds'] / f['epochs']:.1f}",
    "idle share of the cores": lambda f: f"{f['idle']:.0%}",
    "idle share of the slots, by the report": lambda f: f"{f['account']['idle']:.0%}" if f["account"] else "",
    "peak memory of a worker, MB": lambda f: megabytes(f["peak"]),
    "peak memory of a worker, by the report, MB": lambda f: accounted(f, "peak", 1),
    "top-1 error by epoch, best net, %": lambda f: best(f, 0),
    "top-1 error by epoch, median net, %": lambda f: middle(f, 0),
    "top-5 error by epoch, best net, %": lambda f: best(f, 1),
    "top-5 error by epoch, median net, %": lambda f: middle(f, 1),
}
BOTH: dict[str, Callable[[Figures], str]] = {
    "rows stored ÷ table": lambda f: f"{f['stored']:.2f}",
    "rows moved, once, MB": lambda f: megabytes(rows_moved(f)),
    "moved between hosts, an epoch, MB": lambda f: megabytes(f["moved"]["between"] / f["epochs"]),
    "moved to and from the driver without rows, an epoch, MB": lambda f: megabytes(with_driver(f)),
    "rows stored, by the report, MB": lambda f: accounted(f, "stored", 1),
    "rows moved, by the report, MB": lambda f: accounted(f, "rows", 1),
    "States hopped, by the report, an epoch, MB": lambda f: accounted(f, "hopped", f["epochs"]),
    "States stored, by the report, an epoch, MB": lambda f: accounted(f, "states", f["epochs"]),
    "exchanged, by the report, an epoch, MB": lambda f: accounted(f, "exchanged", f["epochs"]),
}


def table(results: dict[str, Any]) -> str:
    """Return the table in Markdown: a column for each way that was measured."""
    names = [name for name in TITLES if name in results["two"] or name in results["many"]]
    lines = [["", *(TITLES[name] for name in names)], ["---"] * (len(names) + 1)]

    def line(title: str, kind: str, cell: Callable[[Figures], str]) -> None:
        found = [cell(results[kind][name]) if name in results[kind] else "" for name in names]
        if any(found):
            lines.append([title, *found])

    for title, cell in TWO.items():
        line(title, "two", cell)
    for title, cell in BOTH.items():
        for kind in ("two", "many"):
            count = next((each["hosts"] for each in results[kind].values()), 0)
            line(f"{title}: {count} hosts", kind, cell)
    read = {
        kind: megabytes(results[kind]["tasks"]["table"] * results[kind]["tasks"]["trials"])
        for kind in ("two", "many")
        if "tasks" in results[kind]
    }
    for kind, size in read.items():
        title = f"rows read by the network instead, an epoch, computed, MB: {results[kind]['tasks']['hosts']} hosts"
        line(title, kind, lambda f, size=size, kind=kind: size if f is results[kind]["tasks"] else "")  # type: ignore[misc]
    return "\n".join(f"| {' | '.join(each)} |" for each in lines)


MEASURES: dict[str, tuple[Callable[[Figures], float], str]] = {
    "seconds an epoch": (lambda f: f["seconds"] / f["epochs"], "{:.1f}"),
    "idle share of the cores, %": (lambda f: 100 * f["idle"], "{:.0f}"),
    "peak memory of a worker, MB": (lambda f: f["peak"] / MEGA, "{:,.0f}"),
    "rows stored ÷ table": (lambda f: f["stored"], "{:.2f}"),
    "MB moved an epoch, rows included": (lambda f: sum(f["moved"].values()) / f["epochs"] / MEGA, "{:,.0f}"),
    "top-1 error of the best net in the end, %": (lambda f: 100 * min(net[-1][0] for net in f["errors"]), "{:.1f}"),
}
"""Measures by which ways are compared, less being better; on many hosts only what is stored and moved."""


def worse(results: dict[str, Any]) -> str:
    """Return a list in Markdown: in what hopping on hosts is worse than a peer."""
    lines = []
    for kind in ("two", "many"):
        own = results[kind].get("hosts")
        for title, (value, form) in MEASURES.items() if own else ():
            if kind == "many" and not ("stored" in title or "moved" in title):
                continue
            better = [
                f"{TITLES[peer]} {form.format(value(results[kind][peer]))}"
                for peer in PEERS
                if peer in results[kind] and value(results[kind][peer]) < value(own) * (1 - MARGIN)
            ]
            if better:
                lines.append(
                    f"- {title}, {own['hosts']} hosts: hopping {form.format(value(own))}, {', '.join(better)}."
                )
    return "\n".join(lines) or "- In nothing that is in the table."


def replaced(text: str, heading: str, new: str) -> str:
    """Return a page with other lines in the place of the block below a heading.

    Raises:
        ValueError: the page has no such heading, or no block below it.
    """
    head, found, rest = text.partition(f"\n{heading}\n\n")
    block, end, tail = rest.partition("\n\n")
    if not found or not block.strip() or not end:
        raise ValueError(f"the page must have a block of lines below {heading!r}")
    return f"{head}{found}{new}{end}{tail}"


def write(results: dict[str, Any]) -> None:
    """Write the table and the list into the page, and the picture beside it."""
    text = replaced(PAGE.read_text(), TABLE, table(results))
    PAGE.write_text(replaced(text, WORSE, worse(results)))
    draw(results, PICTURE)
    print(f"written: {PAGE}, {PICTURE}")


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw time, rows stored and bytes of each way, and its best net's error by epoch."""
    from matplotlib.figure import Figure

    two, many = results["two"], results["many"]
    names = [name for name in TITLES if name in two]
    figure = Figure(figsize=(12, 7), layout="constrained")
    (time, stored), (moved, error) = figure.subplots(2, 2)
    colours = {name: f"C{n}" for n, name in enumerate(TITLES)}

    def bars(axis: Any, title: str, groups: Sequence[tuple[dict[str, Figures], Callable[[Figures], float]]]) -> None:
        height = 0.8 / len(groups)
        for number, (figures, value) in enumerate(groups):
            for n, name in enumerate(names):
                if name in figures:
                    count = figures[name]["hosts"]
                    axis.barh(
                        n + number * height, value(figures[name]), height, color=colours[name], alpha=1 - number / 2
                    )
                    axis.annotate(f" {count}", (value(figures[name]), n + number * height), va="center", fontsize=7)
        axis.set_yticks(
            [n + 0.4 - height / 2 for n in range(len(names))], [TITLES[name].replace("`", "") for name in names]
        )
        axis.invert_yaxis()
        axis.set_title(title, fontsize=10)

    def bytes_moved(figures: Figures) -> float:
        return sum(figures["moved"].values()) / figures["epochs"] / MEGA

    bars(time, "seconds an epoch, two hosts", [(two, lambda f: f["seconds"] / f["epochs"])])
    bars(stored, "rows stored ÷ table; numbers: hosts", [(two, lambda f: f["stored"]), (many, lambda f: f["stored"])])
    bars(moved, "MB moved an epoch, rows included; numbers: hosts", [(two, bytes_moved), (many, bytes_moved)])
    moved.set_xscale("log")
    for name in names:
        errors = zip(*[[100 * epoch[0] for epoch in net] for net in two[name]["errors"]], strict=True)
        lowest = [min(each) for each in errors]
        label = TITLES[name].replace("`", "")
        error.plot(range(1, len(lowest) + 1), lowest, marker="o", color=colours[name], label=label, alpha=0.7)
    error.set(xlabel="epoch", ylim=(0, None))
    error.xaxis.get_major_locator().set_params(integer=True)
    error.set_title("top-1 error of the best net, %", fontsize=10)
    error.legend(fontsize=7)
    figure.savefig(path, dpi=80)
