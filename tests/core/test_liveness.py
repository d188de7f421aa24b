"""Who advances, who stalls, who hangs: told from samples, with the time in them."""

import pytest

from hopyard.core.liveness import BUSY, CREDIT, PHASES, Sample, Watch

BEAT = 2.5


class Worker:
    """A worker that beats every 2.5 seconds."""

    def __init__(self):
        self.at = 100.0
        self.watch = Watch(self.at)
        self.advanced, self.cpu = 0, 0.0

    def go(self, seconds, phase, batches=0, share=0.0):
        """So many seconds in a phase, finishing so many batches a beat and using so much of a processor."""
        end = self.at + seconds
        while self.at < end:
            self.at += BEAT
            self.advanced += batches
            self.cpu += share * BEAT
            self.watch.see(Sample(self.at, self.advanced, phase, self.cpu))
        return self.watch

    def enter(self, phase, **more):
        """A change of phase counts as progress in the worker itself."""
        self.advanced += 1
        return self.go(BEAT, phase, **more)


def test_an_hour_of_batches_is_no_stall():
    it = Worker()
    it.enter("train")
    assert it.go(3600, "train", batches=1).stall == ("train", 0.0)


def test_a_worker_that_finishes_no_batch_hangs_after_stall_timeout():
    it = Worker()
    it.enter("train")
    assert it.go(597.5, "train").hung(600.0) == ""
    assert it.watch.stall == ("train", 597.5)
    it.go(BEAT, "train")
    assert it.watch.hung(600.0) == "made no progress for 600 seconds in phase 'train' (stall_timeout=600)"


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase not in ("idle", "build", "compile")])
def test_processor_time_is_no_progress_where_batches_are_counted(phase):
    """A deadlocked training thread beside one that spins."""
    it = Worker()
    it.enter(phase)
    assert it.go(10.0, phase, share=8.0).hung(10.0)


@pytest.mark.parametrize("phase", ["build", "compile"])
def test_processor_time_is_progress_while_a_model_is_built_or_compiled(phase):
    it = Worker()
    it.enter(phase)
    assert it.go(1800, phase, share=0.9).stall.seconds == 0.0


@pytest.mark.parametrize("share", [0.0, BUSY / 2])
def test_sleeping_is_no_progress_nor_is_looking_now_and_then(share):
    it = Worker()
    it.enter("build")
    assert it.go(600, "build", share=share).hung(600.0)


def test_processor_time_counts_for_an_hour():
    it = Worker()
    it.enter("compile")
    assert not it.go(CREDIT, "compile", share=1.0).hung(600.0)
    assert not it.go(597.5, "compile", share=1.0).hung(600.0)
    assert "in phase 'compile'" in it.go(BEAT, "compile", share=1.0).hung(600.0)


def test_progress_gives_another_hour():
    it = Worker()
    it.enter("compile")
    it.go(CREDIT, "compile", share=1.0)
    it.enter("train")
    it.enter("compile")
    assert not it.go(CREDIT, "compile", share=1.0).hung(600.0)


def test_processor_time_of_a_child_that_is_gone_is_no_step_back_for_the_others():
    it = Worker()
    it.enter("compile", share=1.0)
    it.cpu -= 1000.0
    it.go(BEAT, "compile")
    assert it.go(BEAT, "compile", share=1.0).stall.seconds == 0.0


def test_an_idle_worker_never_stalls():
    it = Worker()
    it.enter("idle")
    assert it.go(10_000, "idle").stall == ("idle", 0.0)
    it.enter("fetch")
    assert not it.go(595, "fetch").hung(600.0)  # its time does not begin before it


def test_a_phase_that_came_back_between_two_samples_is_progress():
    it = Worker()
    it.enter("train")
    for _ in range(5):
        it.go(500, "train")
        it.advanced += 2  # lay, train
    assert not it.go(500, "train").hung(600.0)


def test_silence_before_a_pause_of_the_driver_is_forgiven():
    it = Worker()
    it.enter("train")
    it.go(590, "train")
    it.at += 7200
    it.go(BEAT, "train")  # read first, after the pause
    assert it.watch.hung(600.0)
    it.watch.excuse(it.at)
    assert it.watch.stall.seconds == 0.0
    assert it.go(597.5, "train").hung(600.0) == ""
    assert it.go(BEAT, "train").hung(600.0)


def test_no_sample_says_nothing():
    """Silence is judged elsewhere."""
    watch = Watch(0.0)
    watch.see(Sample(1.0, 1, "train", 0.0))
    assert watch.stall.seconds == 0.0 and not watch.hung(0.5)
