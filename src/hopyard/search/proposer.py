"""Asks a search what to try next, and the user's function which trials end: what they say becomes facts.

How much is asked for at a time depends on the search. One that knows its configurations beforehand gives all at once,
unless trials may end early (asynchronous `stop=`, budgets) or it learns from results: then about two trials for each
worker train at a time. Where trials wait for each other (`sync=True`) or come in batches, a whole cohort is proposed,
so that what is proposed depends on results and never on time.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from hopyard.code import places
from hopyard.core.runs.events import Event, Exhausted, Granted, Proposed, Stopped
from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.errors import SpecError
from hopyard.ports.searches import LearningSampler, Observation, Proposal, Sampler
from hopyard.spec import RunSpec, Warned, copied
from hopyard.stopping.standing import AHEAD
from hopyard.text import error_line

log = logging.getLogger(__name__)

LONGEST = 1000
"""Characters of an error of the user's code that are journaled."""
SAID = "the function of stop= said so"
"""Why trials end that the user's function ends."""


class Proposer:
    """Speaks for a sampler and for the user's function.

    Args:
        machine: of the run; it is read only.
        sampler: proposes configurations.
        workers: how many the engine has.
        stops: trial → whether the user's function ends it; None: there is no such function.
        defined: where that function is defined, for messages.
    """

    def __init__(
        self,
        machine: Machine,
        sampler: Sampler | LearningSampler,
        workers: int,
        stops: Callable[[int], bool] | None = None,
        defined: str = "",
    ) -> None:
        self._machine = machine
        self._sampler = sampler
        self._learning = sampler if isinstance(sampler, LearningSampler) else None
        self._workers = workers
        self._stops = stops
        self._defined = defined
        self._logged: set[tuple[str, str]] = set()
        """What the user's function raised, as (place, category) in the log."""

    def events(self, at: float) -> list[Event]:
        """Return what they say now; the machine must have it before the next call.

        Raises:
            SpecError: the sampler raised before it had proposed anything.
        """
        return [*self._answers(at), *self._proposals(at)]

    def _answers(self, at: float) -> list[Event]:
        """Return what the user's function says of the trials that wait for it."""
        machine, events = self._machine, list[Event]()
        for number in machine.search.asks():
            trial = machine.trials[number]
            ends, reason, warnings = self._ask(number)
            if ends:
                events.append(Stopped(at=at, trial=number, reason=reason))
            else:
                target = min(trial.target + machine.spec.partitions, machine.spec.steps)
                events.append(Granted(at=at, trial=number, target=target, reason=reason, warnings=warnings))
        return events

    def _ask(self, number: int) -> tuple[bool, str, tuple[Warned, ...]]:
        """Return whether the user's function ends a trial, the reason, and what it raised. Where it raises, the trial
        goes on to its next epoch: what becomes of the others must not depend on which was asked first."""
        try:
            ends = self._stops is not None and self._stops(number)
        except Exception as error:  # noqa: BLE001 - it is the user's
            text, place = error_line(error)[:LONGEST], places.of_error(error) or self._defined
            warning = Warned(f"{text}; stop= raised it, and stops no trial where it does", place)
            key = place, text.partition(":")[0]
            if key not in self._logged:
                self._logged.add(key)
                log.warning("trial %d: %s (%s)", number, warning.text, place)
            return False, f"stop= raised {text} ({place}), and so lets it go on", (warning,)
        return ends, SAID if ends else "stop= lets it go on", ()

    def _proposals(self, at: float) -> list[Event]:
        """Return what the sampler proposes, as far as there is room."""
        machine, events = self._machine, list[Event]()
        if machine.exhausted or (room := self._room()) <= 0:
            return events
        number, total = len(machine.trials), machine.spec.trials  # (a larger search may be in the pickle by now)
        history = [] if self._learning is None else self._history()
        for _ in range(room):
            try:
                proposal = self._next(number, history) if total is None or number < total else None
            except Exception as error:  # the search ends, not the run
                if not number:
                    raise SpecError(f"search: it proposed nothing: {error_line(error)[:LONGEST]}") from error
                place = places.of_error(error)
                text = f"{error_line(error)[:LONGEST]} ({place})" if place else error_line(error)[:LONGEST]
                log.warning("search= raised %s: nothing more is proposed", text)
                events.append(Exhausted(at=at, reason=f"the search raised {text}"))
                break
            if proposal is None:
                events.append(Exhausted(at=at))
                break
            config, attributes = copied(proposal.config), copied(dict(proposal.attributes))
            events.append(Proposed(at=at, trial=number, config=config, count=proposal.count, attributes=attributes))
            history.append(Observation(copied(config), "waiting", {}, (), proposal.count, copied(attributes)))
            number += 1
        return events

    def _next(self, number: int, history: list[Observation]) -> Proposal | None:
        if self._learning is not None:
            return self._learning.propose(history)
        assert not isinstance(self._sampler, LearningSampler)
        config = self._sampler.ask(number)
        return None if config is None else Proposal(config)

    def _room(self) -> int:
        """Return how many trials may be proposed now."""
        machine, search = self._machine, self._machine.search
        learns, number = self._learning is not None, len(machine.trials)
        capacity = AHEAD * max(1, search.slots) - len(search.standing.active)
        if (together := search.generation(number)) is not None:
            first, size = together
            standing = search.standing
            begins = not (standing.active or standing.undecided) if learns else capacity > 0
            return first + size - number if begins or number > first else 0
        if search.limited or learns:
            return max(0, capacity)
        return sys.maxsize if self._sampler.total is not None else AHEAD * (self._workers + 4) - machine.open

    def _history(self) -> list[Observation]:
        return [observation(trial, self._machine.spec) for trial in self._machine.trials.values()]


def observation(trial: TrialRecord, spec: RunSpec) -> Observation:
    """Return what samplers see of a trial."""
    values = {
        epoch + 1: value
        for epoch, metrics in sorted(trial.history.items())
        if (value := metrics.get(spec.metric or "")) is not None
    }
    config, attributes = copied(trial.config), copied(trial.attributes)
    return Observation(config, trial.status, values, trial.objectives(spec), trial.count, attributes)
