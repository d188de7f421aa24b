"""Which pods are asked for, and when: decided from what is told, by a clock that is set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hopyard.engines.kubernetes.jobs import Pods
from hopyard.engines.kubernetes.places import AWAY_SECONDS, MOST_SECONDS, Places
from hopyard.engines.supervisors.ticket import Ticket

SET = "hopyard-0a1b2c3d"


def pod(host: str, phase: str = "Running", code: int | None = None, message: str = "", **metadata: Any) -> Any:
    """Return a pod as the API server shows it."""
    state: dict[str, Any] = {"running": {}}
    if code is not None:
        state = {"terminated": {"exitCode": code, "message": message, "reason": "Error" if code else "Completed"}}
    return {
        "metadata": {"name": f"{host}-abcde", **metadata},
        "spec": {"hostname": host},
        "status": {"phase": phase, "containerStatuses": [{"name": "hopyard", "state": state}]},
    }


def failed(host: str, code: int, message: str = "") -> Any:
    return pod(host, "Failed", code, message)


def places(pods: int, per_pod: int = 1) -> Places:
    """Return a set of places with one Job of so many pods."""
    made = Places(SET, per_pod)
    made.add(pods)
    return made


def wait(them: Places, now: float) -> float:
    """Return the seconds until a pod is asked for, in tenths."""
    return next(tenths / 10 for tenths in range(700) if them.wanted(100, now + tenths / 10))


def host(job: int, index: int) -> str:
    return f"{SET}-{job}-{index}"


@pytest.mark.parametrize(("due", "per_pod", "pods"), [(0, 1, 0), (1, 1, 1), (8, 1, 8), (8, 4, 2), (5, 4, 2), (1, 4, 1)])
def test_as_many_pods_are_asked_for_as_hold_the_workers_that_are_due(due: int, per_pod: int, pods: int) -> None:
    new = Places(SET, per_pod)
    assert new.wanted(due, 0.0) == pods
    new.add(pods)
    assert new.wanted(due, 0.0) == 0


def test_a_pod_that_had_an_agent_is_replaced_at_once() -> None:
    them = places(2)
    them.note_supervisors({host(1, 0): True, host(1, 1): True}, 1.0)
    ends = them.note_pods([failed(host(1, 0), 143), pod(host(1, 1))], 2.0)
    assert [*ends] == [host(1, 0)]
    assert them.wanted(2, 2.0) == 1
    them.add(1)
    assert them.next_job == 3
    assert them.wanted(2, 2.0) == 0


def test_a_pod_that_is_about_to_end_is_replaced_before_it_has() -> None:
    them = places(1)
    them.note_supervisors({host(1, 0): True}, 1.0)
    assert not them.note_pods([pod(host(1, 0), deletionTimestamp="2026-01-01T00:00:00Z")], 2.0)
    assert them.wanted(1, 2.0) == 1
    assert [*them.note_pods([failed(host(1, 0), 143)], 3.0)] == [host(1, 0)]
    assert not them.note_pods([failed(host(1, 0), 143)], 4.0)  # it is told once
    assert them.wanted(1, 4.0) == 1


def test_jobs_without_an_agent_are_given_back_and_asked_for_again_at_once() -> None:
    them = places(2)
    them.add(3)
    them.note_supervisors({host(1, 0): True, host(1, 1): True, host(2, 0): False}, 1.0)
    them.give_back(set())
    assert them.jobs == set() and them.wanted(5, 1.0) == 5


def test_pods_of_a_job_with_an_agent_stay_or_leave_by_themselves() -> None:
    them = places(4)
    them.note_supervisors({host(1, 0): True, host(1, 1): True}, 1.0)
    them.give_back({host(1, 0)})
    assert them.jobs == {1}
    assert them.wanted(4, 1.0) == 1  # for the one that leaves; those that have not come may still come
    them.note_pods([pod(host(1, 0)), pod(host(1, 1), "Succeeded", 0), pod(host(1, 2), "Succeeded", 0)], 2.0)
    assert them.wanted(4, 2.0) == 2  # at once, as one that was not needed is no failure


def test_a_pod_with_a_node_has_its_place_until_its_supervisors_have_come() -> None:
    them = places(3, per_pod=2)
    pods = [pod(host(1, index)) for index in range(3)]
    for each in pods[1:]:
        each["spec"]["nodeName"] = "node-1"
    them.note_pods(pods, 1.0)
    assert them.coming == 4
    them.note_supervisors({host(1, 1): False}, 2.0)
    assert them.coming == 2
    them.note_pods([*pods[:2], failed(host(1, 2), 1)], 3.0)
    assert them.coming == 0


def test_pods_that_end_without_an_agent_are_asked_for_ever_later() -> None:
    them, now, waits = Places(SET, 1), 0.0, []
    for job in range(1, 10):
        assert them.wanted(1, now) == 1
        them.add(1)
        them.note_pods([failed(host(job, 0), 1)], now)
        assert them.wanted(1, now) == 0
        waits.append(wait(them, now))
        assert them.wanted(1, now + waits[-1] - 0.01) == 0
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, MOST_SECONDS, MOST_SECONDS, MOST_SECONDS]


def test_pods_of_one_round_that_fail_delay_the_next_one_once() -> None:
    them = places(8)
    them.note_pods([failed(host(1, index), 1) for index in range(4)], 0.0)
    assert wait(them, 0.0) == 1.0
    them.note_pods([failed(host(1, index), 1) for index in range(8)], 0.5)
    assert wait(them, 0.5) == 0.5
    assert them.wanted(8, 1.0) == 8


def test_an_agent_ends_the_delays() -> None:
    them = places(1)
    them.note_pods([failed(host(1, 0), 1)], 0.0)
    them.add(1)
    them.note_pods([failed(host(2, 0), 1)], 1.0)
    assert wait(them, 1.0) == 2.0
    them.add(1)
    them.note_supervisors({host(3, 0): False}, 3.0)  # dialled, no agent yet
    them.note_supervisors({host(3, 0): True}, 4.0)
    them.note_pods([failed(host(3, 0), 137)], 5.0)
    assert them.wanted(1, 5.0) == 1
    them.add(1)
    them.note_pods([failed(host(4, 0), 1)], 6.0)
    assert wait(them, 6.0) == 1.0


def test_a_pod_whose_supervisors_are_gone_is_lost_after_a_moment_and_not_before() -> None:
    them = places(2)
    them.note_supervisors({host(1, 0): True, host(1, 1): True}, 0.0)
    them.note_supervisors({host(1, 0): True}, 1.0)
    them.note_supervisors({host(1, 0): True, host(1, 1): True}, 2.0)  # a successor came
    them.note_supervisors({host(1, 0): True}, 3.0)
    them.note_supervisors({host(1, 0): True}, 3.0 + AWAY_SECONDS)
    assert them.wanted(2, 3.0 + AWAY_SECONDS) == 0
    them.note_supervisors({host(1, 0): True}, 3.1 + AWAY_SECONDS)
    assert them.wanted(2, 3.1 + AWAY_SECONDS) == 1


def test_a_pod_that_was_cut_off_and_is_back_counts_again() -> None:
    them = places(2)
    all_of_them = {host(1, 0): True, host(1, 1): True}
    them.note_supervisors(all_of_them, 0.0)
    them.note_supervisors({}, 1.0)
    them.note_supervisors({}, 1.1 + AWAY_SECONDS)
    assert them.wanted(2, 10.0) == 2
    them.add(2)
    them.note_supervisors(all_of_them, 11.0)
    assert them.wanted(4, 11.0) == 0
    them.note_pods([failed(host(1, 0), 143)], 12.0)
    assert them.wanted(3, 12.0) == 0 and them.wanted(4, 12.0) == 1


def test_a_pod_that_has_not_dialled_yet_is_awaited() -> None:
    them = places(1)
    them.note_pods([pod(host(1, 0))], 0.0)
    them.note_supervisors({}, 1000.0)
    assert them.wanted(1, 1000.0) == 0


def test_a_pod_that_vanishes_from_the_api_is_lost_unless_it_was_never_shown() -> None:
    them = places(2)
    them.note_pods([pod(host(1, 0))], 0.0)
    assert them.unseen_jobs() == [1]
    them.note_pods([], 1.0)
    assert them.wanted(2, 100.0) == 1
    them.forget(1, 100.0)  # the Job is gone too
    assert them.unseen_jobs() == []
    assert them.wanted(2, 200.0) == 2


def test_pods_of_others_do_not_count() -> None:
    them = places(1)
    assert not them.note_pods([failed("hopyard-00000000-1-0", 1), failed(f"{SET}-7-0", 1)], 0.0)
    them.note_supervisors({"somebody": True}, 0.0)
    assert them.wanted(1, 0.0) == 0


def test_where_all_pods_cannot_work_their_sentences_say_so() -> None:
    them = places(3)
    them.note_pods([failed(host(1, 0), 78, "no torch"), failed(host(1, 1), 78, "no torch"), pod(host(1, 2))], 0.0)
    assert them.hopeless(3) == ""
    them.note_pods([failed(host(1, index), 78, "no torch" if index < 2 else "other") for index in range(3)], 1.0)
    assert them.hopeless(3) == "the pod cannot work: no torch; the pod cannot work: other"


def test_one_pod_that_can_work_keeps_the_run() -> None:
    them = places(2)
    them.note_supervisors({host(1, 1): True}, 0.0)
    them.note_pods([failed(host(1, 0), 78, "no torch"), failed(host(1, 1), 143)], 1.0)
    them.add(2)
    them.note_pods([failed(host(2, 0), 78, "no torch"), failed(host(2, 1), 78, "no torch")], 2.0)
    assert them.hopeless(2) == ""


def test_pods_that_end_for_another_reason_leave_hope() -> None:
    them = places(2)
    them.note_pods([failed(host(1, 0), 78, "no torch"), failed(host(1, 1), 1)], 0.0)
    assert them.hopeless(2) == ""


def test_the_driver_is_woken_once_it_is_known_how_a_pod_ended() -> None:
    """The loss of its agents is held back until then."""
    woken: list[str | None] = []
    supervisors: Any = SimpleNamespace(hosts={}, due=0, missing=0, refusals=[], wake=lambda: woken.append(why()))
    api: Any = SimpleNamespace(server="https://cluster", namespace="lab")
    settings: Any = SimpleNamespace(workers_per_pod=1)
    pods = Pods(api, settings, supervisors, Ticket("10.0.0.7", 7701, "token"))
    ended = f"{pods.name}-1-0"

    def why() -> str | None:
        return pods.explain(ended)

    watcher: Any = SimpleNamespace(objects={"a": pod(ended)}, removed=list)
    pods._checked, pods._watcher = True, watcher
    pods._places.add(1)
    pods._step(0.0)
    assert not woken and why() is None
    watcher.objects = {"a": failed(ended, 137)}
    pods._step(1.0)
    pods._step(2.0)
    assert woken == [why()] and str(why()).startswith(f"its pod {ended} ended: ")
