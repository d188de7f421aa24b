"""Given these facts, expect these commands."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hopyard.core.facts import Lost, Tick
from hopyard.core.programs.events import (
    Assigned,
    Begin,
    Closing,
    Ended,
    Finish,
    Halt,
    Over,
    Renew,
    Reported,
    RequestStop,
    Reserved,
    Restarting,
    Running,
    Stop,
    decode,
    encode,
    fitted,
    spec_of,
)
from hopyard.core.programs.machine import LAST, SETTLE
from hopyard.core.programs.placement import Role, assign, environment, roles_of
from hopyard.core.programs.reservation import ELASTIC, FAILED_STARTS
from hopyard.errors import JournalError, SpecError
from program_play import Play, place


def test_each_slot_gets_an_agent_then_each_task_its_slot() -> None:
    play = Play({"worker": 2, "ps": 1, "chief": 1})
    assert [command.slot for command in play.said] == [0, 1, 2, 3]
    begun = play.up()
    assert [command.task.name for command in begun] == ["chief 0", "worker 0", "worker 1", "ps 0"]
    assert [command.task.rank for command in begun] == [0, 1, 2, -1]
    assert play.machine.status == "running"


def test_the_end_of_the_chief_is_the_end_and_a_ps_that_never_exits_is_ended() -> None:
    play = Play({"worker": 2, "ps": 1, "chief": 1})
    play.up()
    play.end("worker 0")
    play.end("chief 0")
    assert {type(command) for command in play.said} == {RequestStop}  # worker 1 may end by itself
    assert [command.slot for command in play.said] == [2, 3]
    play.end("worker 1")
    assert [command.slot for command in play.said] == [3]
    assert play.halted() == [Finish("completed")]
    assert [type(line).__name__ for line in play.lines[-4:]] == ["Ended", "Closing", "Ended", "Over"]


def test_ranks_of_one_host_know_the_gpus_of_all() -> None:
    """LOCAL_RANK counts per host, and is the number of a GPU to scripts for torchrun."""
    places = {n: place(n, "ab"[n // 2], (str(4 + n % 2),)) for n in range(3)}
    tasks = assign(roles_of({"worker": Role(3, gpus=1)}), list(places.values()))
    told = [environment(task, tasks, places, 0, 0, "p") for task in tasks]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in told] == ["4", "5", "4"]
    assert [one.get("HOPYARD_HOST_GPUS") for one in told] == ["4,5", "4,5", None]
    assert [one["LOCAL_RANK"] for one in told] == ["0", "1", "0"]


def test_a_failure_after_the_end_is_reported() -> None:
    play = Play({"chief": 1, "worker": 2, "ps": 1}, grace=3.0)
    play.up()
    play.end("chief 0")
    play.end("worker 0", code=1, error="ValueError: late")
    play.tell(Lost(at=0, slot=2, reason="its executor ended"))
    play.halted()
    records = {record.task.name: record for record in play.machine.tasks.values()}
    assert play.machine.status == "completed"
    assert (records["worker 0"].status, records["worker 0"].cause) == ("failed", "ValueError: late")
    assert records["worker 1"].status == "failed" and "its executor ended" in records["worker 1"].cause
    assert records["ps 0"].status == "ended"


def test_agents_of_one_slot_that_end_before_the_program_begins() -> None:
    """Not those of an executor that had many."""
    play = Play({"worker": 6})
    for slot in range(4):
        play.tell(Reserved(at=0, place=place(slot)))
    for slot in range(4):
        assert play.tell(Lost(at=0, slot=slot, reason="its executor ended")) == [Renew(slot)]
    play.tell(Lost(at=0, slot=2, reason="its executor ended"))
    play.tell(Lost(at=0, slot=2, reason="the third"))
    assert play.machine.status == "failed" and "3 agents of slot 2" in play.machine.cause


def test_tasks_get_a_grace_time_and_servers_end_first() -> None:
    play = Play({"worker": 2, "ps": 2, "chief": 1, "evaluator": 1}, grace=3.0)
    play.up()
    play.end("chief 0")
    assert play.tell(Tick(at=0), 2.5) == []
    play.tell(Tick(at=0), 1.0)
    names = [play.machine.tasks[command.slot].task.name for command in play.said]
    assert names == ["ps 0", "ps 1", "evaluator 0", "worker 0", "worker 1"]
    assert play.halted()[-1] == Finish("completed")


@pytest.mark.parametrize("until, last", [("workers", "worker 1"), ("all", "ps 0")])
def test_whose_end_is_the_end(until: str, last: str) -> None:
    play = Play({"worker": 2, "ps": 1}, until)
    play.up()
    for name in ("worker 0", "worker 1", "ps 0"):
        assert play.machine.phase == "running"
        play.end(name)
        if name == last:
            break
    assert play.machine.phase in ("closing", "over")


def test_a_failing_task_ends_the_program_with_its_own_words() -> None:
    play = Play({"worker": 2})
    play.up()
    play.end("worker 1", code=1, error="ValueError: x", trace="Traceback\n  line", returned=True)
    assert play.said == []
    play.end("worker 0", code=1, error="ConnectionError: peer")
    play.tell(Tick(at=0), SETTLE + 0.01)
    over = play.decided[-1]
    assert isinstance(over, Over) and over.status == "failed"
    assert over.cause == "worker 1 failed: ValueError: x\nTraceback\n  line" and over.slot == 1


def test_the_first_cause_is_who_was_killed_not_who_noticed() -> None:
    play = Play({"worker": 2})
    play.up()
    play.end("worker 0", code=1, error="ConnectionError: peer")
    play.end("worker 1", code=-9, story="process 9 was killed by SIGKILL", returned=False)
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert play.decided[-1].cause == "worker 1 failed: its process 9 was killed by SIGKILL"


def test_a_process_that_ends_before_main_returns_is_no_success() -> None:
    play = Play({"worker": 1})
    play.up()
    play.end("worker 0", code=0, returned=False, story="process 9 ended with exit code 0")
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert play.machine.status == "failed" and "before main returned" in play.machine.cause
    play = Play({"worker": 1}, script=True)
    play.up()
    play.end("worker 0", code=0, returned=False)
    assert play.machine.status == "completed"


def test_a_restart_waits_until_the_old_attempt_has_ended() -> None:
    play = Play({"worker": 3}, max_restarts=1)
    first = play.up()
    play.end("worker 2", code=1, error="E")
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert [command.slot for command in play.said] == [0, 1]
    play.tell(Ended(at=0, slot=0, incarnation=first[0].incarnation, code=-15, halted=True))
    assert play.said == []
    play.tell(Ended(at=0, slot=1, incarnation=first[1].incarnation, code=-15, halted=True))
    begun = [c for c in play.said if isinstance(c, Begin)]
    assert len(begun) == 3 and begun[0].environment["TORCHELASTIC_RESTART_COUNT"] == "1"
    assert (
        play.end("worker 0") == [] and play.tell(Ended(at=0, slot=0, incarnation=first[0].incarnation, code=1)) == []
    )  # of the past
    play.end("worker 1", code=1, error="again")
    play.tell(Tick(at=0), SETTLE + 0.01)
    play.halted()
    assert play.machine.status == "failed" and "again" in play.machine.cause


def test_only_the_task_is_restarted_where_the_program_can_take_it() -> None:
    play = Play({"chief": 1, "ps": 1, "worker": 2}, max_restarts=2, restart_scope="task")
    play.up()
    incarnations = {record.task.name: record.incarnation for record in play.machine.tasks.values()}
    play.end("worker 1", code=-9, returned=False, story="process 9 was killed by SIGKILL")
    play.tell(Tick(at=0), SETTLE + 0.01)
    (begun,) = play.said
    assert begun.task.name == "worker 1" and begun.incarnation > max(incarnations.values())
    assert begun.environment["TORCHELASTIC_RESTART_COUNT"] == "1"
    assert play.machine.phase == "running" and play.machine.restart == 1
    now = {record.task.name: record.incarnation for record in play.machine.tasks.values()}
    assert {name for name in incarnations if incarnations[name] != now[name]} == {"worker 1"}


def test_tasks_that_fail_together_are_one_failure() -> None:
    """A peer that notices is started again with the one that it noticed, and that counts once."""
    play = Play({"chief": 1, "worker": 2}, max_restarts=1, restart_scope="task")
    play.up()
    play.end("worker 1", code=-9, returned=False, story="process 9 was killed by SIGKILL")
    play.end("worker 0", code=1, error="UnavailableError: worker 1")
    assert play.said == []
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert [command.task.name for command in play.said] == ["worker 0", "worker 1"]
    assert play.machine.phase == "running"


def test_a_peer_that_notices_a_lost_slot_first_does_not_use_up_the_restart() -> None:
    play = Play({"chief": 1, "worker": 2}, max_restarts=1, restart_scope="task")
    play.up()
    play.end("chief 0", code=1, error="UnavailableError: worker 1")
    play.tell(Lost(at=0, slot=2, reason="its executor ended"))
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert play.machine.phase == "restarting" and "its executor ended" in play.machine.cause


def test_a_parameter_server_takes_the_variables_along_so_all_is_restarted() -> None:
    play = Play({"chief": 1, "ps": 1, "worker": 2}, max_restarts=2, restart_scope="task")
    play.up()
    play.end("ps 0", code=-9, returned=False, story="process 9 was killed by SIGKILL")
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert isinstance(play.decided[0], Restarting)
    assert [command.slot for command in play.said] == [0, 1, 2]
    play.halted()
    assert [command.task.name for command in play.said] == ["chief 0", "worker 0", "worker 1", "ps 0"]


def test_a_task_is_started_again_beside_one_whose_agent_is_gone() -> None:
    """Worker 0 is done, and its slot was lost since: worker 1 is told of its old address."""
    play = Play({"worker": 2}, "all", max_restarts=1, restart_scope="task")
    play.up()
    play.end("worker 0")
    play.tell(Lost(at=0, slot=0, reason="its executor ended"))
    play.end("worker 1", code=1, error="E")
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert play.said[0].peers == {"worker": ["10.0.0.a:1000", "10.0.0.a:1001"]}
    play.end("worker 1")
    assert play.machine.status == "completed"


def test_a_lost_slot_takes_its_address_along_so_all_is_restarted() -> None:
    play = Play({"worker": 2}, max_restarts=1, restart_scope="task")
    play.up()
    play.tell(Lost(at=0, slot=0, reason="its executor ended"))
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert play.kinds() == ["Halt"]
    play.halted()
    assert play.kinds() == ["Renew"]
    play.up(0)
    assert play.machine.restart == 1 and play.machine.phase == "running"


def test_a_lost_slot_is_never_success() -> None:
    play = Play({"worker": 2})
    play.up()
    play.end("worker 0")
    play.tell(Lost(at=0, slot=1, reason="said nothing for 16 seconds"))
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert play.machine.status == "failed" and "said nothing for 16 seconds" in play.machine.cause


def test_fewer_slots_than_roles() -> None:
    play = Play({"worker": 3}, start_timeout=30.0)
    play.up(0, 1)
    assert play.tell(Tick(at=0), 29.0) == []
    play.tell(Tick(at=0), 2.0)
    assert play.machine.status == "failed"
    assert "need 3 processes" in play.machine.cause and "slots for 2" in play.machine.cause


def test_an_elastic_program_goes_on_with_fewer() -> None:
    play = Play({"worker": (2, 4)}, max_restarts=3)
    play.up(0, 1, 2)
    assert play.machine.phase == "reserving"
    play.tell(Tick(at=0), ELASTIC + 0.01)
    assert isinstance(play.decided[0], Assigned) and len(play.decided[0].tasks) == 3
    play.tell(Lost(at=0, slot=1, reason="x"))
    play.tell(Tick(at=0), SETTLE + 0.01)
    play.halted()
    assert [c.slot for c in play.said if isinstance(c, Renew)] == [1, 3]
    play.tell(Tick(at=0), ELASTIC + 0.01)
    begun = [c for c in play.said if isinstance(c, Begin)]
    assert [c.environment["WORLD_SIZE"] for c in begun] == ["2", "2"]


def test_an_elastic_program_grows_when_slots_come() -> None:
    play = Play({"worker": (2, 4)}, max_restarts=1)
    play.up(0, 1)
    for command in play.tell(Tick(at=0), ELASTIC + 0.01):
        play.tell(Running(at=0, slot=command.task.slot, incarnation=command.incarnation))
    play.tell(Reserved(at=0, place=place(2)))
    assert play.said == [] == play.tell(Tick(at=0), ELASTIC - 0.1)  # others may come
    assert [command.slot for command in play.tell(Tick(at=0), 0.2)] == [0, 1]
    play.halted()
    play.tell(Tick(at=0), ELASTIC + 0.01)
    begun = [c for c in play.said if isinstance(c, Begin)]
    assert [c.environment["WORLD_SIZE"] for c in begun] == ["3"] * 3
    assert begun[0].restart == 1 and begun[0].environment["TORCHELASTIC_RESTART_COUNT"] == "0"  # as in torchrun
    for command in begun:
        play.tell(Running(at=0, slot=command.task.slot, incarnation=command.incarnation))
    play.end("worker 1", code=1, error="ValueError: x")  # the one restart that failures have is still there
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert play.machine.phase == "restarting" and play.machine.restart == 2


def test_a_program_that_may_not_be_started_again_does_not_grow() -> None:
    play = Play({"worker": (2, 4)})
    play.up(0, 1)
    for command in play.tell(Tick(at=0), ELASTIC + 0.01):
        play.tell(Running(at=0, slot=command.task.slot, incarnation=command.incarnation))
    play.tell(Reserved(at=0, place=place(2)))
    assert play.tell(Tick(at=0), 10 * ELASTIC) == []


def test_a_task_that_does_not_begin() -> None:
    play = Play({"worker": 2}, start_timeout=10.0)
    for slot in (0, 1):
        play.tell(Reserved(at=0, place=place(slot)))
    play.tell(Tick(at=0), 11.0)
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert play.kinds() == ["Halt", "Halt"]
    play.halted()
    assert play.machine.status == "failed" and "main within 10 seconds" in play.machine.cause


def test_agents_that_cannot_come_up() -> None:
    play = Play({"worker": 1})
    for _ in range(FAILED_STARTS - 1):
        assert play.tell(Lost(at=0, slot=0, reason="no room")) == [Renew(0)]
    play.tell(Lost(at=0, slot=0, reason="no room"))
    assert play.machine.status == "failed" and "no room" in play.machine.cause


def test_a_stop_ends_all_at_once() -> None:
    play = Play({"worker": 2, "ps": 1})
    play.up()
    play.tell(Stop(at=0, reason="stopped by the user"))
    assert len(play.said) == 3
    assert play.halted()[-1] == Finish("stopped")


def test_a_stop_with_a_grace_time_warns_and_then_ends_what_still_runs() -> None:
    play = Play({"worker": 2, "ps": 1})
    play.up()
    play.tell(Stop(at=0, reason="stopped by the user", grace=20.0))
    assert [type(command) for command in play.said] == [RequestStop] * 3
    play.tell(Stop(at=0, reason="later", grace=60.0), 5.0)  # the first one ends the time
    play.end("worker 0")
    assert play.tell(Tick(at=0), 14.0) == []
    play.tell(Tick(at=0), 1.1)
    assert [command.slot for command in play.said if isinstance(command, Halt)] == [2, 1]
    assert play.halted()[-1] == Finish("stopped") and play.machine.cause == "stopped by the user"


def test_a_program_that_ends_within_the_grace_time_of_a_stop_is_done() -> None:
    play = Play({"worker": 1})
    play.up()
    play.tell(Stop(at=0, reason="stopped by the user", grace=20.0))
    assert play.end("worker 0")[-1] == Finish("completed")


def test_a_second_stop_does_not_wait_for_the_grace_time_of_the_first() -> None:
    play = Play({"worker": 1})
    play.up()
    play.tell(Stop(at=0, reason="x", grace=20.0))
    play.tell(Stop(at=0, reason="x"))
    assert play.kinds() == ["Halt"]


def test_a_task_that_cannot_be_ended_does_not_hold_the_program() -> None:
    play = Play({"worker": 1})
    play.up()
    play.tell(Stop(at=0, reason="x"))
    play.tell(Tick(at=0), 20.0)
    assert play.machine.status == "stopped"


def test_the_dialects() -> None:
    spec = spec_of({"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}, None)
    places = {slot: place(slot, "a" if slot < 3 else "b") for slot in range(5)}
    tasks = assign(spec.wanted, list(places.values()))
    worker = environment(tasks[2], tasks, places, 0, 0, "r")
    config = msgspec.json.decode(worker["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1} and "evaluator" not in config["cluster"]
    assert config["cluster"]["worker"] == ["10.0.0.a:1001", "10.0.0.a:1002"]
    assert worker["WORKER_HOSTS"] == "10.0.0.a:1001,10.0.0.a:1002" and worker["PS_HOSTS"] == "10.0.0.b:1004"
    assert (worker["RANK"], worker["WORLD_SIZE"], worker["LOCAL_RANK"]) == ("2", "3", "2")
    assert (worker["MASTER_ADDR"], worker["MASTER_PORT"]) == ("10.0.0.a", "2000")
    assert worker["JAX_COORDINATOR_ADDRESS"] == "10.0.0.a:3000" and worker["JAX_PROCESS_ID"] == "2"
    server = environment(tasks[3], tasks, places, 0, 0, "r")
    assert "RANK" not in server and server["JOB_NAME"] == "ps"


def test_local_ranks_count_per_host() -> None:
    places = [place(0, "a"), place(1, "b"), place(2, "a"), place(3, "b")]
    tasks = assign({"worker": Role(4)}, places)
    assert [(t.rank, t.slot, t.local_rank, t.group_rank, t.local_world_size) for t in tasks] == [
        (0, 0, 0, 0, 2),
        (1, 2, 1, 0, 2),
        (2, 1, 0, 1, 2),
        (3, 3, 1, 1, 2),
    ]


def test_parameter_servers_get_the_last_slots() -> None:
    places = [place(0, "a"), place(1, "driver"), place(2, "b"), place(3, "driver"), place(4, "driver")]
    tasks = assign(roles_of({"worker": 2, "ps": 2, "evaluator": 1}), places)
    assert {task.name: task.slot for task in tasks} == {
        "worker 0": 0,
        "worker 1": 1,
        "ps 0": 3,
        "ps 1": 4,
        "evaluator 0": 2,
    }


def test_gpus_go_to_the_roles_that_ask() -> None:
    places = [place(0), place(1, gpus=("0",)), place(2, gpus=("0", "1"))]
    tasks = assign(roles_of({"worker": Role(2, gpus=1), "ps": 1}), places)
    assert [(t.name, t.slot, t.gpus) for t in tasks] == [
        ("worker 0", 1, ("0",)),
        ("worker 1", 2, ("0",)),
        ("ps 0", 0, ()),
    ]
    with pytest.raises(SpecError, match="asks for 2 GPU"):
        assign(roles_of({"worker": Role(2, gpus=2)}), places)


@pytest.mark.parametrize(
    "roles, until, chosen",
    [
        ({"chief": 1, "worker": 2}, None, "chief"),
        ({"master": 1, "worker": 2}, "chief", "chief"),
        ({"worker": 2, "ps": 1}, None, "workers"),
        ({"worker": 2, "ps": 1}, "chief", "worker:0"),
        ({"trainer": 2, "ps": 1}, "chief", "trainer:0"),
        ({"worker": 2, "ps": 1}, "ps:0", "ps:0"),
        ({"worker": 2, "ps": 1}, "worker:01", "worker:1"),
        ({"worker": (2, 4)}, "chief", "worker:0"),
    ],
)
def test_which_tasks_must_end(roles: Any, until: Any, chosen: str) -> None:
    assert spec_of(roles, until).until == chosen


def test_the_end_of_worker_0_is_the_end_where_others_only_serve() -> None:
    play = Play({"worker": 3, "ps": 1}, "chief", grace=1.0)
    play.up()
    play.end("worker 1")
    assert play.machine.phase == "running"
    play.end("worker 0")
    assert [type(command) for command in play.said] == [RequestStop, RequestStop]
    play.tell(Tick(at=0), 1.1)
    play.halted()
    assert play.machine.status == "completed"


def test_worker_0_of_an_elastic_program_is_the_first_of_those_that_run() -> None:
    play = Play({"worker": (1, 2)}, "chief", max_restarts=1)
    play.up()
    play.tell(Lost(at=0, slot=0, reason="x"))
    play.tell(Tick(at=0), SETTLE + 0.01)
    play.halted()
    play.tell(Tick(at=0), ELASTIC + 0.01)
    assert play.machine.tasks[1].task.name == "worker 0"
    play.end("worker 0")
    assert play.machine.status == "completed"


class TestMaxTime:
    def test_tasks_may_end_restarts_alone_then_they_are_ended(self) -> None:
        play = Play({"worker": 2, "ps": 1}, max_time=60.0, grace=3.0)
        play.up()
        assert play.tell(Tick(at=0), 59.0) == []
        play.tell(Tick(at=0), 1.0)
        assert [type(command) for command in play.said] == [RequestStop] * 3
        play.end("worker 0")
        assert play.tell(Tick(at=0), 2.0) == []
        play.tell(Tick(at=0), 1.0)
        assert play.kinds() == ["Halt", "Halt"]
        play.halted()
        over = play.decided[-1]
        assert (over.status, over.cause, over.slot) == ("failed", "it took longer than max_time=60 seconds", -1)

    def test_restarts_do_not_begin_it_anew(self) -> None:
        play = Play({"worker": 1}, max_time=60.0, max_restarts=5)
        play.up()
        play.tell(Tick(at=0), 50.0)
        play.end("worker 0", code=1, error="E")
        play.tell(Tick(at=0), SETTLE + 0.01)
        assert play.kinds() == ["Begin"]
        play.tell(Tick(at=0), 10.0)
        assert isinstance(play.decided[0], Closing)
        play.halted()
        play.tell(Tick(at=0), 20.0)
        play.halted()
        assert play.machine.cause == "it took longer than max_time=60 seconds, its 1 restart(s) included"

    def test_while_it_waits_for_slots(self) -> None:
        play = Play({"worker": 2}, max_time=10.0)
        play.up(0)
        play.tell(Tick(at=0), 11.0)
        assert play.machine.status == "failed" and not play.machine.no_slots
        assert play.machine.cause.endswith("it waited for slots, and there were 1 of the 2 that it needs")

    def test_a_simultaneous_failure_is_shown_first(self) -> None:
        play = Play({"worker": 1}, max_time=10.0)
        play.up()
        play.tell(Tick(at=0), 9.9)
        play.end("worker 0", code=1, error="ValueError: x")
        play.tell(Tick(at=0), SETTLE + 0.01)
        assert "ValueError: x" in play.machine.cause

    def test_a_program_that_is_done_is_done(self) -> None:
        play = Play({"worker": 1, "ps": 1}, max_time=10.0)
        play.up()
        play.end("worker 0")
        play.tell(Tick(at=0), 11.0)
        play.halted()
        assert play.machine.status == "completed"

    def test_a_stop_does_not_wait_for_the_grace(self) -> None:
        play = Play({"worker": 1}, max_time=10.0, grace=60.0)
        play.up()
        play.tell(Tick(at=0), 11.0)
        play.tell(Stop(at=0, reason="stopped by the user"))
        assert play.kinds() == ["Halt"]
        play.halted()
        assert play.machine.status == "failed" and "max_time" in play.machine.cause


def test_the_id_of_a_program_is_that_of_all_its_tasks_and_restarts() -> None:
    play = Play({"worker": 2}, max_restarts=1, run_id="abc")
    ids = [command.environment["TORCHELASTIC_RUN_ID"] for command in play.up()]
    play.end("worker 0", code=1, error="E")
    play.tell(Tick(at=0), SETTLE + 0.01)
    play.halted()
    ids += [command.environment["TORCHELASTIC_RUN_ID"] for command in play.said]
    assert ids == ["abc"] * 4


def test_groups_are_the_hosts_of_ranks_counted_from_0() -> None:
    """As torchrun has it: GROUP_RANK is below GROUP_WORLD_SIZE, also where the first host has no rank."""
    gpus = {0: (), 1: ("0",), 2: ("0",)}
    places = {slot: place(slot, "abc"[slot], gpus[slot]) for slot in gpus}
    tasks = assign(roles_of({"worker": Role(2, gpus=1), "ps": 1}), list(places.values()))
    told = {task.name: environment(task, tasks, places, 0, 0, "r") for task in tasks}
    assert [told[f"worker {n}"]["GROUP_RANK"] for n in (0, 1)] == ["0", "1"]
    assert {one["GROUP_WORLD_SIZE"] for one in told.values()} == {"2"}


@pytest.mark.parametrize(
    "roles, until, words",
    [
        ({}, None, "a dict such as"),
        ({"worker": 0}, None, "at least one"),
        ({"worker": -1}, None, r"roles\['worker'\] = -1: .* got -1"),
        ({"worker": "2"}, None, r"roles\['worker'\] must be .*, got '2'"),
        ({"Worker": 2}, None, "no name of a role"),
        ({"worker": (3, 2)}, None, r"roles\['worker'\] = \(3, 2\): .* got 3"),
        ({"chief": 2}, None, "one chief"),
        ({"chief": 1, "master": 1}, None, "two names"),
        ({"ps": 2}, "chief", "never end"),
        ({"ps": 2}, "workers", "never end"),
        ({"worker": 2}, "ever", "until must be .*, got 'ever'"),
        ({"worker": 2}, 3, "until must be .*, got 3"),
        ({"worker": 2}, "worker:", "until must be .*, got 'worker:'"),
        ({"worker": 2}, "worker:-1", "until must be .*, got 'worker:-1'"),
        ({"worker": 2}, "worker:²", "until must be .*, got 'worker:²'"),
        ({"worker": 2}, "ps:0", "roles have no 'ps'; there are 'worker'"),
        ({"worker": 2, "ps": 1}, "worker:2", "until = 'worker:2': .* from 0 to 1"),
        ({"worker": (2, 4)}, "worker:2", "until = 'worker:2': .* from 0 to 1, .* may go on with 2"),
    ],
)
def test_bad_values(roles: Any, until: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        spec_of(roles, until)


def test_an_agent_that_does_not_answer_is_replaced() -> None:
    play = Play({"worker": 2}, max_restarts=1)
    play.up()
    play.end("worker 0", code=1, error="E")
    play.tell(Tick(at=0), SETTLE + 0.01)
    assert [command.slot for command in play.said] == [1]
    play.tell(Tick(at=0), LAST + 1)
    assert play.said == [Renew(1)]
    assert isinstance(play.decided[0], Lost) and "task within 5 seconds" in play.decided[0].reason


def test_elastic_roles_are_cut_to_the_engine() -> None:
    assert fitted(spec_of({"worker": (2, 4)}, None), 3).roles == {"worker": (3, 2, 0)}


def test_those_who_ask_for_no_gpu_see_none() -> None:
    places = {0: place(0, gpus=("0",)), 1: place(1, gpus=("1",))}
    tasks = assign(roles_of({"worker": Role(1, gpus=1), "ps": 1}), list(places.values()))
    seen = {task.role: environment(task, tasks, places, 0, 0, "r")["CUDA_VISIBLE_DEVICES"] for task in tasks}
    assert seen == {"worker": "0", "ps": ""}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_metrics_that_are_not_finite_survive_the_journal(value: float) -> None:
    fact = Reported(at=1.0, slot=0, incarnation=1, values={"loss": value})
    assert repr(decode(encode(fact))) == repr(fact)


def test_facts_survive_the_journal() -> None:
    play = Play({"worker": 1})
    play.tell(Reserved(at=0, place=place(0)))
    assert isinstance(play.decided[0], Assigned)
    assert decode(encode(play.decided[0])) == play.decided[0]
    with pytest.raises(JournalError):
        decode(b'{"type":"Other"}')
