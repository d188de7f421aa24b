"""What a cluster did, as text, and what of it is compared.

`observed/*.txt` is of a real Kubernetes 1.36.2, with a kubelet that ran processes: of each change of a pod the seconds
since the beginning, then its phase, exit code, whether it is being deleted, and conditions that tell something;
statuses of Jobs; refusals; events. Changes that show nothing new are left out.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

OBSERVED = Path(__file__).parent / "observed"


class Record:
    """A transcript as what is compared of it.

    Attributes:
        pods: the states of each pod, `<job>-<index>.<number>`, one after the other.
        others: the other lines: statuses of Jobs, refusals, events.
        waits: (pod, seconds) from the end of a pod, or its deletion, to its replacement.
    """

    def __init__(self) -> None:
        self.pods: dict[str, list[tuple[Any, ...]]] = {}
        self.others: list[str] = []
        self.waits: list[tuple[str, float]] = []


POD = re.compile(r"\s+([\d.]+) (ADDED|MODIFIED|DELETED)\s+(\S+)\s+(\S+)\s+exit=(\[.*?\]) (deleting )?(\[.*\])")


def parsed(text: str, before: str = "") -> Record:
    """Return what is compared of a transcript: in it, names and counts that differ from run to run are the same.

    Conditions of finished pods are not compared: the kubelet of the transcripts dropped those of before.

    Args:
        before: lines that name pods which `text` names too.
    """
    record = Record()
    names: dict[str, str] = {}
    ended: dict[str, float] = {}
    count: dict[str, int] = {}
    for line in [*before.splitlines(), None, *text.splitlines()]:
        if line is None:
            record = Record()
        elif match := POD.fullmatch(line):
            when, kind, name, phase, code, deleting, conditions = match.groups()
            index = name.rpartition("-")[0]
            if name not in names:
                count[index] = count.get(index, 0) + 1
                names[name] = f"{index}.{count[index]}"
                if index in ended:
                    record.waits.append((names[name], float(when) - ended[index]))
            is_over = phase in ("Failed", "Succeeded")
            if is_over and index not in ended:
                ended[index] = float(when)
            if kind == "DELETED":
                state: tuple[Any, ...] = ("DELETED",)
            else:
                shown = () if is_over else tuple(one for one in ast.literal_eval(conditions) if one[0] != "Ready")
                state = (phase, *(ast.literal_eval(code) if is_over else ()), deleting or "", shown)
            states = record.pods.setdefault(names[name], [])
            if not states or states[-1] != state:
                states.append(state)
        elif line.strip() and not line.startswith("=="):
            record.others.append(_plain(re.sub(r"^\s+[\d.]+ JOB", "JOB", line), names))
    return record


def _plain(line: str, names: dict[str, str]) -> str:
    for name, number in names.items():
        line = line.replace(name, number)
    line = re.sub(r"pod \S+?/", "pod hop/", line)
    line = re.sub(r"\d+(/\d+)? (nodes are|Insufficient)", r"N \2", line)
    return re.sub(r'pods "([a-z0-9]+)-\d+-\w{5}"', r'pods "\1"', line).strip()
