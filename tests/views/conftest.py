"""Journals for the views: one that went well, one where everything happened."""

import random

import pytest

from hopyard.core.facts import Lost
from hopyard.core.runs.events import (
    Began,
    Check,
    Checked,
    Dispatch,
    Done,
    Durable,
    Exhausted,
    Failed,
    Finish,
    Finished,
    Interrupted,
    Joined,
    Proposed,
    Resumed,
)
from hopyard.core.runs.machine import Machine
from hopyard.spec import Part, Ref, RunSpec

T0 = 1_760_000_000.0


def act(spec, trials, slots=3, lose=None, fail=None, interrupt=None, seconds=1.0, host="node"):
    """A run in virtual time, with metrics that get better, driven event by event.

    `lose`, `fail`, `interrupt`: number of the unit at which a worker is lost (another joins 2 s later on its host), a
    trial fails, the driver is interrupted (another resumes an hour later).
    """
    stream = random.Random(7)
    machine, lines, queue, clock = Machine(spec), [], [], T0
    count = 0

    def feed(event):
        lines.append(event)
        for command in machine.handle(event):
            if isinstance(command, Dispatch):
                lines.append(command)
                work(command)
            elif isinstance(command, Check):
                lines.append(command)
                names = ("loss", "accuracy")
                queue.append(
                    (
                        clock + 0.3,
                        Checked(at=clock + 0.3, slot=command.slot, trial=command.trial, faults=(), names=names),
                    )
                )
            elif isinstance(command, Finish) and machine.status == "running":
                feed(Finished(at=clock, status=command.status))

    def work(command):
        nonlocal count
        count += 1
        unit = command.unit
        if count == lose:
            at = clock + 0.4 * seconds
            queue.append((at, Lost(at=at, slot=command.slot, reason="killed by signal 9")))
            queue.append((at + 2, Joined(at=at + 2, slot=slots + 10, host=f"{host}{command.slot % 2}", pid=99)))
            return
        if count == fail:
            at = clock + 0.5 * seconds
            trace = "Traceback (most recent call last):\n  loss.backward()\nValueError: loss is NaN"
            queue.append(
                (
                    at,
                    Failed(
                        at=at,
                        slot=command.slot,
                        lease=unit.lease,
                        fault="user",
                        error="ValueError: loss is NaN",
                        trace=trace,
                    ),
                )
            )
            return
        each = seconds * (1.0 if unit.kind == "train" else 0.3) * (1 + unit.trial / 8)
        quality = 0.9 / (1 + 0.2 * unit.step + abs(unit.trial - 2))
        parts = tuple(
            Part(
                p,
                {"loss": (quality * 100, 100.0), "accuracy": ((1 - quality) * 100, 100.0)},
                each * stream.uniform(0.9, 1.1),
            )
            for p in unit.partitions
        )
        spent = sum(part.seconds for part in parts) + 0.05
        at = clock + spent
        queue.append(
            (
                at,
                Done(
                    at=at,
                    slot=command.slot,
                    lease=unit.lease,
                    parts=parts,
                    seconds=spent,
                    hop_seconds=0.02,
                    hop_bytes=500_000,
                ),
            )
        )
        if unit.kind == "train":
            ref = Ref(unit.trial, unit.step + len(parts), unit.lease)
            queue.append(
                (
                    at + 0.1,
                    Durable(
                        at=at + 0.1,
                        slot=command.slot,
                        ref=ref,
                        digest=f"{unit.trial:02x}{ref.step:02x}" * 16,
                        bytes=500_000,
                    ),
                )
            )

    feed(Began(at=clock, spec=spec))
    for number, config in enumerate(trials):
        feed(Proposed(at=clock, trial=number, config=config))
    feed(Exhausted(at=clock))
    for slot in range(slots):
        clock += 0.1
        feed(Joined(at=clock, slot=slot, host=f"{host}{slot % 2}", pid=100 + slot))
    while queue:
        queue.sort(key=lambda entry: entry[0])
        clock, event = queue.pop(0)
        feed(event)
        if interrupt is not None and count >= interrupt:
            interrupt = None
            queue.clear()
            feed(Interrupted(at=clock, reason="Ctrl-C"))
            clock += 3600
            feed(Resumed(at=clock))
            for slot in range(slots):
                feed(Joined(at=clock + 1, slot=20 + slot, host=f"{host}{slot % 2}", pid=200 + slot))
    return lines


CONFIGS = [{"lr": lr, "width": width, "optimizer": "adam"} for lr in (0.1, 0.01, 0.001) for width in (64, 256)]


@pytest.fixture(scope="session")
def spec():
    return RunSpec(epochs=3, partitions=4, validation=2, trials=6, metric="val_loss", group=2)


@pytest.fixture(scope="session")
def good(spec):
    return act(spec, CONFIGS)


@pytest.fixture(scope="session")
def rough(spec):
    """A lost worker, a failed trial, a resume."""
    return act(spec, CONFIGS, lose=9, fail=17, interrupt=26)


@pytest.fixture(scope="session")
def play():
    return act
