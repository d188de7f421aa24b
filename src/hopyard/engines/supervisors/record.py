"""The driver's record of one supervisor."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopyard import __version__
from hopyard.engines.supervisors.line import Line
from hopyard.engines.supervisors.messages import Lines, SupervisorHello
from hopyard.engines.supervisors.supervisor import PYTHON, named


@dataclass(slots=True)
class Supervisor:
    """One supervisor, as the driver knows it."""

    line: Line
    since: float
    lines: Lines = field(default_factory=Lines)
    host: str = ""
    name: str = ""
    """Of the host, for messages."""
    executor: str = ""
    """Host, and process there to which it belongs."""
    process: int = 0
    """Its own number on its host."""
    gpus: tuple[str, ...] = ()
    job: int = -1
    """Number of what placed it: the job whose task started it, where Spark did."""
    task: bool = True
    """Whether its task is there; False: its core was released."""
    slot: int = -1
    """Slot whose agent runs there; −1: none."""
    held_slot: int = -1
    """Slot that it holds for the agent of another supervisor, whose own task is gone; −1: none."""
    used: bool = False
    """Whether it has had a slot."""
    hosted: bool = False
    """Whether it has had an agent, and so may have a template."""
    importing: bool = False
    """Whether the template of which its agent is to be forked may still import."""
    ending: bool = False
    """Whether an agent of it is being ended; it takes no other before it has confirmed that."""
    ending_slot: int = -1
    """The slot whose agent is being ended there, and may still be at work; −1: none."""
    leaving: bool = False
    """Whether it was ordered to leave."""
    given_up: bool = False
    """Whether it does not follow its orders: its job is cancelled, which ends it."""
    reason: str = ""
    """Why it leaves, as it reported."""

    def end_reason(self, task_name: str) -> str:
        """Return why its connection ended, as far as that is known. `task_name`: what holds its place."""
        if not self.reason:
            return f"its {task_name if self.task else 'supervisor'} on {self.name} ended"
        note = (
            ""
            if self.task
            else " (no task held it then: with dynamic allocation, Spark removes executors that are idle)"
        )
        return self.reason + note


def version_fault(hello: SupervisorHello) -> str:
    """Return why a supervisor cannot work for this driver, in words that are right on both hosts; empty: it can."""
    name = named(hello.host, hello.node)
    if hello.version != __version__:
        return (
            f"{name} has another version of Hopyard than the driver ({hello.version or 'unknown'}; the driver "
            f"has {__version__}): install the same one for both"
        )
    if hello.python != PYTHON:
        return (
            f"{name} runs agents with Python {hello.python}, and the driver with {PYTHON}: neither reads the "
            "other's pickles; use the same minor version for both"
        )
    return ""
