"""Synchronous rules: the trials of a cohort wait for each other at each rung, which then decides about all of them.

A cohort is a bracket of Hyperband, a batch of a search, or all trials of the run. What a rung decides depends on the
values of its trials alone, so it is the same for any number of workers. Batches come one after the other, and may be
too small to compare anything: a batch is compared with itself and all earlier ones, whose values are there by then.

Source: Li et al., "Hyperband", JMLR 18, 2018, algorithm 1 (n_i = ⌊n η^-i⌋ trials come to rung i; at least one here).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hopyard.stopping.halving import Bracket
from hopyard.stopping.rung import WORST, Rung
from hopyard.stopping.standing import Course, Standing, TrialView, Verdict


class Cohort:
    """The trials that wait for each other.

    Args:
        first: number of the first of them.
        size: how many there are, unless the search proposes fewer.
        bracket: their rungs.
    """

    def __init__(self, first: int, size: int, bracket: Bracket) -> None:
        self.first = first
        self.size = size
        self.bracket = bracket
        self.proposed = 0
        self.out = [0] * (len(bracket.rungs) + 1)
        """How many failed on the way to each rung, and to the end."""

    def closed(self, exhausted: bool) -> bool:
        """Whether all its trials are there."""
        return self.proposed == self.size or exhausted

    def entered(self, level: int) -> int:
        """Return how many trials were on the way to the rung of this level."""
        return self.bracket.rungs[level - 1].promoted if level else self.proposed

    def missing(self, level: int) -> int:
        """Return how many trials are on the way to the rung of this level."""
        return self.entered(level) - self.out[level] - len(self.bracket.rungs[level].order)

    def complete(self, level: int, exhausted: bool) -> bool:
        """Whether all its trials that can come to the rung of this level are there."""
        return (
            self.closed(exhausted)
            and not any(self.missing(each) for each in range(level + 1))
            and not any(rung.waiting for rung in self.bracket.rungs[:level])
        )


Keep = Callable[[TrialView, int, float], float]
"""(trial, step, key of its metric there) → what a rung keeps of it, smaller for better."""
Verdicts = Callable[[int, Rung, TrialView], tuple[bool, str]]
"""(number of trials that are compared, complete rung, trial that waits there) → whether it goes on, and the reason."""


class Cohorts:
    """Judge of the rules with `sync=True`.

    Args:
        sizes: sizes of the cohorts into which trials are dealt in the order of proposal, again and again.
        bracket: number of a size → a new bracket.
        keep: what rungs keep.
        verdict: what they decide.
        batches: whether a cohort is compared with the earlier ones too, and so waits for them at each rung.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        bracket: Callable[[int], Bracket],
        keep: Keep,
        verdict: Verdicts,
        batches: bool = False,
    ) -> None:
        self._batches = batches
        self._sizes = sizes
        self._bracket = bracket
        self._keep = keep
        self._verdict = verdict
        self._cohorts: dict[int, Cohort] = {}
        """First trial → cohort."""
        self._open: dict[int, None] = {}
        """First trials of the cohorts in which something may still be decided."""

    def first(self, trial: int) -> int:
        """Return the first rung of its cohort."""
        return self._of(trial).bracket.first

    def proposed(self, trial: int) -> None:
        """Count it."""
        self._of(trial).proposed += 1

    def report(self, trial: TrialView, step: int, value: float) -> None:
        """Add it to the rung."""
        if (rung := self._of(trial.id).bracket.rung(step)) is not None:
            rung.add(trial.id, self._keep(trial, step, value))

    def granted(self, trial: int, step: int) -> None:
        """Record that it goes on from the rung."""
        if (rung := self._of(trial).bracket.rung(step)) is not None:
            rung.promote(trial)

    def ended(self, trial: TrialView) -> None:
        """Let it wait at no rung any more, and no rung wait for it."""
        cohort = self._of(trial.id)
        rung = cohort.bracket.rung(trial.target)
        if rung is not None:
            rung.leave(trial.id)
        if trial.status == "failed" and not self._came(cohort, trial):
            cohort.out[_level(cohort, trial)] += 1
        self._open[cohort.first] = None

    def again(self, trial: TrialView, anew: bool) -> bool:
        """Let rungs wait for it again; remove its values, if it begins anew."""
        cohort = self._of(trial.id)
        self._open[cohort.first] = None
        target = cohort.bracket.rung(trial.target)
        if not anew and target is not None and target.back(trial.id):
            return True
        if not self._came(cohort, trial):
            cohort.out[_level(cohort, trial)] -= 1
        for rung in cohort.bracket.rungs if anew else ():
            rung.remove(trial.id, trial.target)
        return False

    def decide(self, standing: Standing) -> Iterator[Verdict]:
        """Decide about all that wait at rungs which are complete; pause the others."""
        for first in sorted(self._open):
            cohort = self._cohorts[first]
            for rung in cohort.bracket.rungs:
                level = rung.level
                if not rung.waiting or not all(
                    each.complete(level, standing.exhausted) for each in self._awaited(cohort)
                ):
                    continue
                trials, compared = self._compared(cohort, rung)
                for _, number in list(rung.order):
                    if number in rung.waiting:
                        goes_on, reason = self._verdict(trials, compared, standing.trials[number])
                        yield Verdict(number, rung.following if goes_on else None, reason)
            rungs = cohort.bracket.rungs
            if cohort.closed(standing.exhausted) and not any(r.waiting or cohort.missing(r.level) for r in rungs):
                del self._open[first]
        for number, step in list(standing.undecided.items()):
            cohort = self._of(number)
            reached = cohort.bracket.rung(step)
            missing = 0 if reached is None else sum(each.missing(reached.level) for each in self._awaited(cohort))
            name = "the rung" if reached is None else reached.name
            yield Verdict(number, step, f"{name}: it waits for {missing} other{'s' if missing != 1 else ''}")

    def generation(self, trial: int) -> tuple[int, int] | None:
        """Return the cohort of this trial."""
        first, _, size = self._place(trial)
        return first, size

    def rungs(self) -> list[tuple[str, int, int, int]]:
        """Return the rungs of all cohorts; those of several rounds (trials are dealt to the same brackets, or batches,
        again and again) are added up, and the name says so."""
        rows: dict[tuple[str, int], list[Rung]] = {}
        for cohort in self._cohorts.values():
            for rung in cohort.bracket.rungs:
                rows.setdefault((rung.name, rung.step), []).append(rung)
        return [
            (
                f"{name}, {len(rungs)} rounds together" if len(rungs) > 1 else name,
                step,
                sum(len(rung.order) for rung in rungs),
                sum(rung.promoted for rung in rungs),
            )
            for (name, step), rungs in rows.items()
        ]

    def _awaited(self, cohort: Cohort) -> list[Cohort]:
        """Return the cohorts that a rung of this one waits for: itself, and of batches the earlier ones in which a
        trial that failed is tried again."""
        if not self._batches:
            return [cohort]
        return [self._cohorts[first] for first in self._open if first < cohort.first] + [cohort]

    def _compared(self, cohort: Cohort, rung: Rung) -> tuple[int, Rung]:
        """Return what a rung decides by: how many trials there are, and the values with which they came to it, those of
        earlier batches included. O(n log n) for n trials."""
        cohorts = [each for each in self._cohorts.values() if each.first <= cohort.first] if self._batches else [cohort]
        if len(cohorts) == 1:
            return cohort.proposed, rung
        whole = Rung(f"{rung.name}, all batches so far", rung.step, rung.following, rung.level)
        whole.order = sorted(entry for each in cohorts for entry in each.bracket.rungs[rung.level].order)
        whole.waiting = rung.waiting
        return sum(each.proposed for each in cohorts), whole

    def _came(self, cohort: Cohort, trial: TrialView) -> bool:
        """Whether the rung that is the trial's target has its value."""
        rung = cohort.bracket.rung(trial.target)
        return rung is not None and any(number == trial.id for _, number in rung.order)

    def _of(self, trial: int) -> Cohort:
        first, kind, size = self._place(trial)
        if first not in self._cohorts:
            self._cohorts[first] = Cohort(first, size, self._bracket(kind))
            self._open[first] = None
        return self._cohorts[first]

    def _place(self, trial: int) -> tuple[int, int, int]:
        """Return (first trial, number of the size, size) of its cohort."""
        total = sum(self._sizes)
        first = trial - trial % total
        for kind, size in enumerate(self._sizes):
            if trial < first + size:
                return first, kind, size
            first += size
        raise AssertionError(f"trial {trial} has no cohort")


def _level(cohort: Cohort, trial: TrialView) -> int:
    """Return the level of the rung on the way to which the trial is."""
    rung = cohort.bracket.rung(trial.target)
    return len(cohort.bracket.rungs) if rung is None else rung.level


def halving(factor: int) -> tuple[Keep, Verdicts]:
    """Return what rungs of successive halving keep and decide."""

    def keep(trial: TrialView, step: int, value: float) -> float:
        return value

    def verdict(trials: int, rung: Rung, trial: TrialView) -> tuple[bool, str]:
        quota = max(1, trials // factor ** (rung.level + 1))
        goes_on = rung.waiting[trial.id] < WORST and rung.rank(trial.id) < quota
        return goes_on, f"{rung.name}: {rung.place(trial.id)}, {quota} go{'es' if quota == 1 else ''} on"

    return keep, verdict


def batches(course: Course, steps: Sequence[int], keep: Keep, verdict: Verdicts) -> Cohorts:
    """Return the judge of a rule that does not say itself how many trials wait for each other: those of a batch, or all
    of the run."""
    sizes = [max(1, course.batch or course.trials or 1)]
    return Cohorts(sizes, lambda kind: Bracket("", steps, course.steps), keep, verdict, bool(course.batch))
