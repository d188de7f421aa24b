"""The final report of a run, in plain text, and the same as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hopyard.core.runs.events import Line
from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.spec import RunSpec
from hopyard.text import escaped, one_line, shell_command
from hopyard.views import hosts, words
from hopyard.views.hosts import Sizes
from hopyard.views.timeline import Chart, chart

TRACES = 3
"""The most tracebacks that a report shows."""
WARNINGS = 50
"""The most warnings that it shows."""
DECISIONS = 50
"""The most trials of which it says why they were stopped."""
THIN = 0.01
"""The share of the wall time, and of a second, from which on the report says that there were fewer trials than workers.
"""
HOME_IDLE = 0.05
"""The share of slot time from which on, where slots idled for homes, the report names what helps."""
SHORT = 16
"""How many hexadecimal digits of a digest a table shows; `summary` has all of them."""


def summary(machine: Machine, status: str) -> list[dict[str, Any]]:
    """Return one dict a trial, by number: plain values, ready for JSON (NaN stays a float: encode it as your format
    likes).

    Keys: trial, config, status, epochs (how many are complete), epoch (the best of them, from 1), best (the run's
    metric there), metrics (of that epoch), last_metrics (of the last one), history (epoch → metrics), digest (of the
    final State, empty until it is durable), remaining_seconds (of training, estimated), fault, error, trace (the
    traceback), reason (the search's newest decision about it).
    """
    metric = machine.spec.metric
    return [
        {
            "trial": trial.id,
            "config": trial.config,
            "status": words.status(trial, status),
            "epochs": len(trial.history),
            "epoch": None if trial.best is None else trial.best + 1,
            "best": trial.value(metric),
            "metrics": {} if trial.best is None else trial.history[trial.best],
            "last_metrics": trial.metrics,
            "history": {epoch + 1: trial.history[epoch] for epoch in sorted(trial.history)},
            "digest": _digest(trial, machine),
            "remaining_seconds": trial.remaining,
            "fault": trial.fault,
            "error": trial.error,
            "trace": trial.trace,
            "reason": trial.reason,
        }
        for _, trial in sorted(machine.trials.items())
    ]


def _digest(trial: TrialRecord, machine: Machine) -> str:
    return trial.digests.get(machine.spec.steps, "") or trial.digest()


def brief(timeline: Chart, machine: Machine) -> dict[str, Any]:
    """Return the values for one line about a run, ready for JSON. `folded` is the status that the journal folds to."""
    best, counts = words.best(machine), words.counts(machine)
    return {
        "folded": machine.status,
        "completed": counts["completed"],
        "stopped": counts["stopped"],
        "failed": counts["failed"],
        "trials": machine.spec.trials if machine.spec.trials is not None else len(machine.trials),
        "epochs": machine.spec.epochs,
        "metric": machine.spec.metric,
        "best": best.value(machine.spec.metric) if best is not None else None,
        "started": timeline.began,
        "seconds": timeline.elapsed(timeline.at),
    }


def facts(lines: Iterable[Line], machine: Machine, status: str, sizes: Sizes | None = None) -> dict[str, Any]:
    """Return the totals of the whole run, and under "hosts" those of each host: plain values for JSON. `sizes`: as for
    `report`."""
    timeline = chart(lines)
    return {**_facts(timeline, machine, status), "hosts": hosts.plain(timeline.hosts, sizes or {})}


def report(
    lines: Iterable[Line], machine: Machine, about: dict[str, Any], status: str, sizes: Sizes | None = None
) -> str:
    """Return the final report.

    Args:
        lines: the journal.
        machine: its fold.
        about: the content of run.json. Used are `directory` (of the run), `split`, `store`, `recipe`, `recipes` and
            `digests`; each may be missing.
        status: the status of the run (`store/standing.py`).
        sizes: bytes of the partitions by kind, where they are known.
    """
    timeline = chart(lines)
    totals = _facts(timeline, machine, status)
    directory = one_line(str(about.get("directory", "") or ""))
    blocks = [
        _head(timeline, machine, directory, totals, str(about.get("split", "") or "")),
        _recipes(machine, about),
        _best(machine),
        _ranks(machine, status),
        _search(machine),
        _account(timeline, machine, totals),
        _hosts(timeline, sizes or {}),
        _failures(machine),
        _warnings(machine),
        _defects(machine),
        _next(machine, about, directory, status),
    ]
    return escaped("\n\n".join(block for block in blocks if block) + "\n")


def _facts(timeline: Chart, machine: Machine, status: str) -> dict[str, Any]:
    counts, records = words.counts(machine), timeline.hosts.values()
    return {
        "status": status,
        "trials": len(machine.trials),
        "completed": counts["completed"],
        "stopped": counts["stopped"],
        "paused": counts["paused"],
        "failed": counts["failed"],
        "closed": machine.search.closed,
        "search_error": machine.search.error,
        "wall_seconds": timeline.elapsed(timeline.at),
        "busy_seconds": timeline.busy(),
        "idle_share": timeline.idle(),
        "thin_seconds": timeline.thin,
        "slots": len(timeline.lanes),
        "units": timeline.units,
        "partitions": timeline.parts,
        "redone": timeline.redone,
        "hop_seconds": timeline.hop_seconds,
        "hop_bytes": timeline.hop_bytes,
        "states": timeline.stored,
        "state_bytes": timeline.stored_bytes,
        "fetched_bytes": sum(host.fetched_bytes for host in records),
        "exchanged_bytes": sum(host.exchanged_bytes for host in records),
        "home_idle_seconds": machine.scheduler.home_idle,
        "lost": [mark.text for mark in timeline.lost],
        "resumed": len(timeline.gaps),
        "defects": list(machine.defects),
        "warnings": [
            {"place": place, "text": text, "trials": sorted(trials)}
            for (place, _), (text, trials) in machine.warnings.items()
        ],
    }


def _head(timeline: Chart, machine: Machine, directory: str, facts: dict[str, Any], split: str) -> str:
    spec, status = machine.spec, facts["status"]
    why = [f" ({mark.text})" for mark in timeline.marks[-1:] if mark.what == status]
    data = words.count(spec.partitions, "partition")
    if spec.validation:
        data += f" + {spec.validation} for validation"
    unusable = sum(bool(trial.history) and not trial.good(spec.metric) for trial in machine.trials.values())
    lines = [
        f"Hopyard run{f' {directory}' if directory else ''}: {status}{''.join(why)}",
        f"  {facts['completed']} of {words.count(facts['trials'], 'trial')} completed"
        + "".join(f", {facts[name]} {name}" for name in ("stopped", "paused", "failed") if facts[name])
        + f"; {words.count(spec.epochs, 'epoch')}, {data}, seed {spec.seed}",
    ]
    lines += [f"  it ended with what it had: {machine.search.closed}"] if machine.search.closed else []
    lines += [f"  nothing more was proposed: {machine.search.error}"] if machine.search.error else []
    lines += [f"  {words.count(unusable, 'trial')} without a finite {spec.metric}"] if unusable else []
    lines += [f"  rows are split {split}"] if split and machine.spec.validation else []
    lines += [f"  nothing was trained: {fault}" for fault in machine.faults if status == "failed"]
    return "\n".join(lines)


def _recipes(machine: Machine, about: dict[str, Any]) -> str:
    """Return which trials were trained with which recipe; empty where there is one recipe."""
    ids: dict[str, list[int]] = {}
    for _, trial in sorted(machine.trials.items()):
        ids.setdefault(trial.recipe, []).append(trial.id)
    if set(ids) <= {""}:
        return ""
    digests = {"": str((about.get("digests") or {}).get("recipe", "")) or "–", **{seal: seal for seal in ids if seal}}
    names = {"": str(about.get("recipe", "")), **(about.get("recipes") or {})}
    rows = [
        f"  {names.get(seal, '') or 'recipe'} (digest {digests[seal][:SHORT]}): trials {', '.join(map(str, trials))}"
        for seal, trials in sorted(ids.items())
    ]
    return "\n".join(["Recipes", *rows])


def _best(machine: Machine) -> str:
    spec = machine.spec
    best = words.best(machine)
    if best is None or best.best is None:
        has_history = any(trial.history for trial in machine.trials.values() if trial.status != "failed")
        return f"Best: none; no trial has a finite {spec.metric}" if has_history else ""
    why = f" by {spec.metric} ({spec.mode})" if spec.metric else ""
    metrics = best.history[best.best]
    order = [name for name in words.columns(machine) if name in metrics]
    lines = [
        f"Best{why}: trial {best.id}, epoch {best.best + 1} of {spec.epochs}",
        "  " + "  ".join(f"{name} {words.number(metrics[name])}" for name in order),
        *(f"  {name} = {item!r}" for name, item in best.config.items()),
    ]
    if len(spec.objectives) > 1:
        names = ", ".join(f"{each.metric} ({each.mode})" for each in spec.objectives)
        lines += [f"Not dominated by {names}", *(f"  {_in_all(trial, spec)}" for trial in words.pareto(machine))]
    return "\n".join(lines)


def _in_all(trial: TrialRecord, spec: RunSpec) -> str:
    values = zip(spec.objectives, trial.values(spec.objectives), strict=True)
    return f"trial {trial.id}: " + "  ".join(f"{each.metric} {words.number(value)}" for each, value in values)


def _ranks(machine: Machine, status: str) -> str:
    if not machine.trials:
        return ""
    names = words.columns(machine)[:5]
    params = words.differing(machine) if len(machine.trials) > 1 else []
    head = ["rank", "trial", "status", "epoch", *names, *params, "digest"]
    rows = [head]
    for rank, trial in enumerate(words.ranked(machine), 1):
        metrics = {} if trial.best is None else trial.history[trial.best]
        epoch = "–" if trial.best is None else str(trial.best + 1)
        digest = _digest(trial, machine)[:SHORT] or "–"
        rows.append(
            [
                "–" if trial.status == "failed" or trial.best is None else str(rank),
                str(trial.id),
                words.status(trial, status),
                epoch,
                *(words.number(metrics.get(name)) for name in names),
                *(words.value(trial.config[name]) if name in trial.config else "–" for name in params),
                digest,
            ]
        )
    lines = words.aligned(rows, left={2, len(head) - 1})
    return "\n  ".join(["Trials, each at its best epoch (digest: of its final State)", *lines])


def _search(machine: Machine) -> str:
    """Return what the search decided: its rungs, and why trials wait or were stopped."""
    rows = [
        (name, words.after(machine, step), f"{came} came", f"{promoted} went on")
        for name, step, came, promoted in machine.search.rungs()
    ]
    reasons = [trial for trial in machine.trials.values() if trial.status in ("paused", "stopped")]
    if not rows and not reasons:
        return ""
    rule = words.rule(machine)
    lines = [f"Search{f', with stop={rule}' if rule else ''}"]
    lines += [f"  {row}" for row in words.aligned(rows, left={0, 1})]
    lines += [f"  trial {trial.id} {trial.status}: {trial.reason}" for trial in reasons[:DECISIONS]]
    if len(reasons) > DECISIONS:
        lines.append(f"  and {len(reasons) - DECISIONS} more: `hopyard show --json` has all")
    return "\n".join(lines)


def _account(timeline: Chart, machine: Machine, facts: dict[str, Any]) -> str:
    idle = facts["idle_share"]
    rows = [("wall time", words.duration(facts["wall_seconds"]))]
    if timeline.gaps:
        away = sum(end - start for start, end in timeline.gaps)
        times = words.count(len(timeline.gaps), "time")
        rows.append(("resumed", f"{times}; not in it: {words.duration(away)} without a driver"))
    if idle is not None:
        rows.append(("idle share", f"{idle:.1%} of the slots' time, from the first to the last unit"))
    if timeline.thin >= THIN * max(1.0, facts["wall_seconds"]):
        thin = words.duration(timeline.thin)
        rows.append(("few trials", f"for {thin} there were fewer to train than workers; free ones validated or waited"))
    rows += _idle_for_homes(timeline, machine)
    rows.append(("units", f"{words.count(timeline.units, 'unit')} over {words.count(timeline.parts, 'partition')}"))
    rows.append(("done again", words.count(timeline.redone, "partition") if timeline.redone else "none"))
    rows.append(("hops", f"{words.size(timeline.hop_bytes)} in {words.duration(timeline.hop_seconds)}"))
    rows.append(("stored", f"{words.count(timeline.stored, 'State')}, {words.size(timeline.stored_bytes)}"))
    rows += _one_host(timeline, facts)
    lost = timeline.lost
    rows.append(("lost workers", str(len(lost)) if lost else "none"))
    width = max(13, *(len(name) for name, _ in rows))
    lines = ["Account", *(f"  {name:<{width}} {text}" for name, text in rows)]
    lines += [f"    {words.duration(timeline.elapsed(mark.at))} after the start: {mark.text}" for mark in lost[:20]]
    if len(lost) > 20:
        lines.append(f"    and {len(lost) - 20} more")
    return "\n".join(lines)


def _idle_for_homes(timeline: Chart, machine: Machine) -> list[tuple[str, str]]:
    """Return the row about slots that were idle because no partition that a trial visits next was at home there."""
    if not machine.scheduler.home_idle:
        return []
    share = machine.scheduler.home_idle / max(machine.scheduler.home_idle, timeline.slot_seconds())
    text = f"{share:.1%} of the slots' time, in which trials waited for hosts that have their rows"
    copies = machine.spec.copies
    if share > HOME_IDLE and copies is not None and machine.spec.members == 1:
        text += f"; parallel=hy.Hopper(copies={copies + 1}) gives each partition one more home"
    return [("idle for homes", f"{words.duration(machine.scheduler.home_idle)}, {text}")]


def _one_host(timeline: Chart, facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the row about what workers took, where all were on one host."""
    peak = max((host.peak_bytes for host in timeline.hosts.values()), default=0)
    parts = [f"up to {words.size(peak)} of memory each"] if peak else []
    parts += [f"{words.size(facts['fetched_bytes'])} of rows brought to the host"] if facts["fetched_bytes"] else []
    parts += [f"{words.size(facts['exchanged_bytes'])} exchanged in gangs"] if facts["exchanged_bytes"] else []
    return [("workers", "; ".join(parts))] if parts and len(timeline.hosts) == 1 else []


def _hosts(timeline: Chart, sizes: Sizes) -> str:
    """Return what each host holds and has moved; empty where there is one host."""
    records = timeline.hosts
    if len(records) < 2:
        return ""
    lines = [
        "Hosts (partitions and rows: in its cache; moved: rows brought there; peak: of one worker's memory)",
        *(f"  {line}" for line in hosts.table(timeline.hosts, sizes)),
    ]
    if whole := sum(map(sum, sizes.values())):
        stored = sum(host.rows_bytes(sizes) or 0 for host in records.values())
        moved = sum(host.fetched_bytes for host in records.values())
        lines.append(
            f"  The table has {words.size(whole)}; hosts store {stored / whole:.2f} times as much, and "
            f"{moved / whole:.2f} times as much was moved"
        )
    return "\n".join(lines)


def _failures(machine: Machine) -> str:
    failed = [trial for _, trial in sorted(machine.trials.items()) if trial.status == "failed"]
    if not failed:
        return ""
    lines = [f"Failed: {words.count(len(failed), 'trial')}"]
    errors: dict[tuple[str, str], list[TrialRecord]] = {}
    for trial in failed[:20]:
        errors.setdefault((trial.fault, trial.error), []).append(trial)
    for (fault, error), trials in errors.items():
        lines.append(f"  {'trial' if len(trials) == 1 else 'trials'} {_numbers(trials)} ({fault}): {error}")
        lines += [f"    {words.named(trial.config)}" for trial in trials]
    if len(failed) > 20:
        lines.append(f"  and {len(failed) - 20} more")
    traces: dict[str, list[TrialRecord]] = {}
    for trial in failed:
        if trial.trace:
            traces.setdefault(trial.trace.strip(), []).append(trial)
    for trace, trials in list(traces.items())[:TRACES]:
        lines += [f"  Traceback of trial {_numbers(trials)}", *(f"    | {line}" for line in trace.splitlines())]
    if len(traces) > TRACES:
        lines.append(f"  and {words.count(len(traces) - TRACES, 'other traceback')}: `hopyard show --json` has all")
    return "\n".join(lines)


def _numbers(trials: Iterable[TrialRecord]) -> str:
    return ", ".join(str(trial.id) for trial in trials)


def _warnings(machine: Machine) -> str:
    return "\n  ".join(["Warnings", *words.warned(machine, WARNINGS)]) if machine.warnings else ""


def _defects(machine: Machine) -> str:
    if not machine.defects:
        return "Defects: none seen"
    return "\n".join(
        [
            f"DEFECTS: {len(machine.defects)}. What was promised to be equal is not: the recipe is not deterministic, "
            "or Hopyard is at fault",
            *(f"  {text}" for text in machine.defects[:20]),
        ]
    )


def _next(machine: Machine, about: dict[str, Any], directory: str, status: str) -> str:
    store = about.get("store") or "states"
    if not (store.startswith("/") or "://" in store):  # inside the run directory
        store = f"{directory.rstrip('/')}/{store}" if directory else ""
    lines = [f"States: {store}"] if store else []
    if not directory:
        return "\n".join(lines)
    if status in ("interrupted", "stopped"):
        lines.append(f"To go on: {shell_command('resume', directory)}")
    elif status in ("partial", "failed") and words.retriable(machine):
        lines.append(f"To try again what no recipe is to blame for: {shell_command('resume', directory, ' --failed')}")
    best = words.best(machine)
    if best is not None:
        lines += [
            "To use them:",
            "  import hopyard as hy",
            f"  run = hy.load({directory!r})",
            "  model = run.best.model()              # the best trial, at its best epoch",
            '  run.best.save("best")                 # config.json, the weights, the recipe',
            f"  run.trials[{best.id}].predict(data)",
        ]
    return "\n".join(lines)
