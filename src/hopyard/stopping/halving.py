"""Asynchronous successive halving, with promotion or without, in one bracket or in those of Hyperband.

A trial is promoted when fewer than `room` train: the best waiting trial of the highest rung of which it is among the
best 1 / η. When nothing is left to propose or to promote so, and a slot would idle, the best waiting trial of the
highest rung that has promoted none is promoted. When nothing trains any more, the trials that wait are stopped.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2 (`get_job`); its
free workers are here places among the trials that train at a time, of which there are two for each slot. The promotion
of a slot that would idle is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hopyard.stopping.rung import WORST, Rung
from hopyard.stopping.standing import Standing, TrialView, Verdict


class Bracket:
    """The rungs of one bracket.

    Args:
        name: for reasons; "" where there is one bracket.
        steps: of its rungs, rising.
        end: the last step of the run.
    """

    def __init__(self, name: str, steps: Sequence[int], end: int) -> None:
        self.end = end
        self.rungs = [
            Rung(f"{name}rung {level + 1}", step, following, level)
            for level, (step, following) in enumerate(zip(steps, [*steps, end][1:], strict=True))
        ]
        self._at = {rung.step: rung for rung in self.rungs}

    @property
    def first(self) -> int:
        """The first target of its trials."""
        return self.rungs[0].step if self.rungs else self.end

    def rung(self, step: int) -> Rung | None:
        """Return the rung at this step."""
        return self._at.get(step)


class Halving:
    """Judge of asynchronous `ASHA` and `Hyperband`.

    Args:
        brackets: (number of trials, bracket) in the order in which trials are dealt to them, again and again.
        factor: η.
        promote: whether a trial that is not among the best waits; else it is stopped.
    """

    def __init__(self, brackets: Sequence[tuple[int, Bracket]], factor: int, promote: bool) -> None:
        self._brackets = brackets
        self._total = sum(count for count, _ in brackets)
        self._factor = factor
        self._promote = promote
        every = [rung for _, bracket in brackets for rung in bracket.rungs]
        self._descending = sorted(every, key=lambda rung: -rung.step)
        self._ascending = every

    def first(self, trial: int) -> int:
        """Return the first rung of its bracket."""
        return self._bracket(trial).first

    def proposed(self, trial: int) -> None:
        """Record nothing: brackets have any number of trials."""

    def report(self, trial: TrialView, step: int, value: float) -> None:
        """Add it to the rung. O(log n)."""
        if (rung := self._rung(trial.id, step)) is not None:
            rung.add(trial.id, value)

    def granted(self, trial: int, step: int) -> None:
        """Record that it goes on from the rung."""
        if (rung := self._rung(trial, step)) is not None:
            rung.promote(trial)

    def ended(self, trial: TrialView) -> None:
        """Let it wait at no rung any more."""
        if (rung := self._rung(trial.id, trial.target)) is not None:
            rung.leave(trial.id)

    def again(self, trial: TrialView, anew: bool) -> bool:
        """Remove its values, if it begins anew; else let it wait at its rung again, if it did."""
        for each in self._bracket(trial.id).rungs if anew else ():
            each.remove(trial.id, trial.target)
        rung = self._rung(trial.id, trial.target)
        return not anew and rung is not None and rung.back(trial.id)

    def decide(self, standing: Standing) -> Iterator[Verdict]:
        """Promote while there is room; pause the others; stop all when nothing trains any more."""
        if not self._promote:
            yield from self._go_on_or_stop(standing)
            return
        while (choice := self._choice(standing)) is not None:
            rung, trial, reason = choice
            yield Verdict(trial, rung.following, reason)
        for trial, step in list(standing.undecided.items()):
            rung = self._expect(trial, step)
            yield Verdict(trial, step, f"{rung.name}: {rung.place(trial)}, {self._share}")
        if standing.exhausted and not standing.active and not self._may_promote(standing):
            for trial in list(standing.paused):
                rung = self._expect(trial, standing.trials[trial].target)
                yield Verdict(trial, None, f"{rung.name}: {rung.place(trial)}, {self._share}; the search is over")

    def generation(self, trial: int) -> tuple[int, int] | None:
        """Return None: trials are proposed one by one."""
        return None

    def rungs(self) -> list[tuple[str, int, int, int]]:
        """Return its rungs, bracket by bracket."""
        return [(rung.name, rung.step, len(rung.order), rung.promoted) for rung in self._ascending]

    def _choice(self, standing: Standing) -> tuple[Rung, int, str] | None:
        """Return the next promotion: rung, trial, reason. O(rungs + log n)."""
        if len(standing.active) < standing.room and (choice := self._promotable()) is not None:
            rung, trial = choice
            return rung, trial, f"{rung.name}: {rung.place(trial)}, {self._share}"
        if not standing.exhausted or len(standing.active) >= standing.slots or self._promotable() is not None:
            return None
        if (choice := self._first_of_its_rung()) is None:
            return None
        rung, trial = choice
        return rung, trial, f"{rung.name}: {rung.place(trial)}, a free worker promotes the best of a rung without one"

    def _promotable(self) -> tuple[Rung, int] | None:
        for rung in self._descending:
            trial = rung.best()
            if trial is not None and rung.rank(trial) < len(rung.order) // self._factor:
                return rung, trial
        return None

    def _first_of_its_rung(self) -> tuple[Rung, int] | None:
        for rung in self._descending:
            if not rung.promoted and (trial := rung.best()) is not None:
                return rung, trial
        return None

    def _may_promote(self, standing: Standing) -> bool:
        """Whether a promotion waits for slots to come."""
        return not standing.slots and (self._promotable() or self._first_of_its_rung()) is not None

    def _go_on_or_stop(self, standing: Standing) -> Iterator[Verdict]:
        for trial, step in list(standing.undecided.items()):
            rung = self._expect(trial, step)
            goes_on = rung.waiting[trial] < WORST and rung.rank(trial) < max(1, len(rung.order) // self._factor)
            reason = f"{rung.name}: {rung.place(trial)}, {self._share}"
            yield Verdict(trial, rung.following if goes_on else None, reason)

    @property
    def _share(self) -> str:
        return f"top 1/{self._factor} goes on"

    def _bracket(self, trial: int) -> Bracket:
        place = trial % self._total
        for count, bracket in self._brackets:
            if place < count:
                return bracket
            place -= count
        raise AssertionError(f"trial {trial} has no bracket")

    def _rung(self, trial: int, step: int) -> Rung | None:
        return self._bracket(trial).rung(step)

    def _expect(self, trial: int, step: int) -> Rung:
        rung = self._rung(trial, step)
        assert rung is not None, f"trial {trial} waits at step {step}, which is no rung"
        return rung
