"""A world where everything goes wrong that may: for the tests of the machine, and to write journals for them.

Slots are slow, are lost, are thought lost and answer all the same; States become durable late, out of order or never;
units fail, run out of memory, or cannot take a State; the store is away for a while; the journal's disk is full; the
driver is killed between any two of its steps and resumed; a search pauses, promotes and stops trials.
`step` lets one of these things happen, drawn from `choose`; after `finish` nothing more goes wrong, and the run must
end.

After every step the world looks for a broken promise (`promises`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from faults.agents import Agent
from faults.promises import Content, at_the_end, between_events, hold, offset, sums_of
from hopyard.core.facts import Lost, Tick
from hopyard.core.runs.codec import decode, encode
from hopyard.core.runs.events import (
    Began,
    Check,
    Checked,
    Command,
    Delete,
    Dispatch,
    Done,
    Durable,
    Event,
    Exhausted,
    Extended,
    Failed,
    Finish,
    Finished,
    Forgotten,
    GiveUp,
    Granted,
    Joined,
    Keep,
    Left,
    Proposed,
    Release,
    Replace,
    Requested,
    Resumed,
    Retried,
    Stopped,
    StoreAway,
    StoreBack,
    Warn,
    Yielded,
    journaled,
)
from hopyard.core.runs.machine import Machine, fold
from hopyard.core.runs.order import visit
from hopyard.core.runs.scheduling.scheduler import Assignment
from hopyard.spec import Fault, Part, PartitionRange, Ref, RunSpec, Unit, packed


@dataclass
class Chaos:
    """One run in a bad world.

    Args:
        spec: the run's; its `trials` are proposed at the start.
        choose: n → a number in [0, n).
        slots: most slots at a time.
        hosts: on how many hosts they are.
        arrays: whether a metric is an additive array, so that folds are needed.
        sick: trials whose units raise a user error now and then.
        unfit: trials that do not pass preflight.
        fragile: one in so many stored States is gone when another driver takes over; 0: none.
        blind: one in so many hops does not find the State in its maker's memory, though it is there; 0: none.
        restless: one in so many units goes to any idle slot, not to the one that the scheduler chose; 0: none.
        weights: how likely each kind of step is.
    """

    spec: RunSpec
    choose: Callable[[int], int]
    slots: int = 3
    hosts: int = 1
    arrays: bool = False
    sick: frozenset[int] = frozenset()
    unfit: frozenset[int] = frozenset()
    fragile: int = 0
    blind: int = 0
    restless: int = 0
    weights: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.machine = self._unsettled(Machine(self.spec))
        self.journal: list[bytes] = []
        self.store: dict[Ref, Content] = {}
        self.agents: dict[int, Agent] = {}
        """Agents that the driver knows."""
        self.strays: list[Agent] = []
        """Agents that the driver thinks lost, and that may live on."""
        self.clock = 0.0
        self.joined = 0
        self.kind = False
        """Whether nothing more goes wrong by itself."""
        self.killed = False
        self.swept: set[Ref] = set()
        self.stored: set[Ref] = set()
        """States of which this driver knows that they are stored."""
        self.modelled: set[int] = set()
        """Trials that have had a model, none of whose States is gone."""
        self.forfeit: set[int] = set()
        """Trials of which a State was lost with its maker, or is gone."""
        self.released: set[tuple[int, str]] = set()
        self.ended = False
        self.retried = False
        self.steps = 0
        self._kinds = [kind for kind, weight in (_WEIGHTS | self.weights).items() for _ in range(weight)]

    def _unsettled(self, machine: Machine) -> Machine:
        """Return the machine with a scheduler that makes trials hop: no promise may depend on which slot gets what."""
        scheduler, assignments = machine.scheduler, machine.scheduler.assignments

        def elsewhere() -> Iterator[Assignment]:
            for assignment in assignments():
                yield self._elsewhere(machine, assignment)
            for slot in list(scheduler.idle):  # those whose units went elsewhere
                scheduler.set_idle(machine.slots[slot])
            yield from assignments()

        scheduler.assignments = elsewhere  # type: ignore[method-assign]
        return machine

    def _elsewhere(self, machine: Machine, assignment: Assignment) -> Assignment:
        """Return another slot for the unit, or a unit of another trial for the slot."""
        state = assignment.trial.states.get(assignment.trial.step)
        fixed = assignment.kind != "train" or assignment.trial.isolated or (state is not None and state.parked)
        if fixed or not self.restless or self.choose(self.restless):
            return assignment
        others = [machine.slots[number] for number in machine.scheduler.idle if number != assignment.slot.id]
        idle = [slot for slot in others if slot.trains]
        if idle:
            return assignment._replace(slot=idle[self.choose(len(idle))])
        waiting = [trial for trial in machine.trials.values() if machine.scheduler.is_ready(trial)]
        trial = waiting[self.choose(len(waiting))]
        epoch, partition = visit(trial.offset, trial.step, self.spec.partitions)
        return assignment._replace(trial=trial, epoch=epoch, partitions=(partition,))

    # ---------------------------------------------------------------- what may happen

    def start(self) -> None:
        """Begin the run."""
        self.feed(Began(at=0.0, spec=self.spec, workers=self._workers))
        self._propose()

    @property
    def _workers(self) -> int:
        return self.slots if self.hosts > 1 else 0

    def _propose(self) -> None:
        """Let the search propose what there is to come; an asynchronous one, as much as its slots take."""
        machine, total = self.machine, self.machine.spec.trials or 0
        while not self.killed and not machine.exhausted:
            number = len(machine.trials)
            if number == total:
                self.feed(Exhausted(at=self.clock))
            elif machine.search.limited and len(machine.search.standing.active) >= 2 * self.slots:
                break
            else:
                first = offset(self.spec, number) if self.spec.seed % 2 else -1
                self.feed(Proposed(at=self.clock, trial=number, config={"n": number}, offset=first))

    def _answer(self) -> None:
        """Let the user's function answer about each trial that awaits it."""
        for number in self.machine.search.asks():
            trial = self.machine.trials[number]
            if (number + len(trial.history)) % 3:
                target = min(trial.target + self.spec.partitions, self.spec.steps)
                self.feed(Granted(at=self.clock, trial=number, target=target, reason="it may go on"))
            else:
                self.feed(Stopped(at=self.clock, trial=number, reason="the function said so"))

    def step(self) -> None:
        """Let one thing happen."""
        self.steps += 1
        self.clock += 0.25
        if self.killed:
            self.resume()
        else:
            self._propose()
            self._answer()
            kind = self._kinds[self.choose(len(self._kinds))]
            getattr(self, kind)()
        if not self.killed:
            self.look()

    def finish(self) -> None:
        """Let nothing more go wrong; check that the run ends and gives what it must."""
        self._to_the_end()
        if self.choose(3) and self._tried_again():
            self._to_the_end()
            failed = [trial.id for trial in self.machine.trials.values() if trial.status == "failed"]
            hold(set(failed) <= self.sick | self.unfit, f"tried again in a kind world, and failed: {failed}")
        if self.choose(2) and self.machine.names and self.spec.stop is None and not self.machine.search.closed:
            self._die()
            self.resume()
            self._extend()
            self._to_the_end()

    def _to_the_end(self) -> None:
        turns = 0
        self.kind = True
        while not self.ended:
            turns += 1
            hold(turns < 200 * (1 + self.spec.steps) * (1 + len(self.machine.trials)), "the run does not end")
            for agent in list(self.agents.values()):
                if agent.away:
                    self._back(agent)
            self.clock += 0.25
            if self.killed:
                self.resume()
            for _ in range(self.slots):
                self.join()
            for agent in [*self.agents.values(), *self.strays]:
                self._work(agent)
                while agent.pending:
                    self._write(agent, 0)
                while agent.outbox and not self.killed:
                    self.feed(agent.outbox.popleft())
            if not self.ended:
                self._propose()
                self._answer()
            if not self.killed:
                self.look()
                if not turns % 10 and not any(agent.task for agent in self.agents.values()):
                    self.tick()  # else a unit that was given out a moment ago would be late
        for agent in [*self.agents.values(), *self.strays]:  # messages on their way when the run ended
            while agent.pending:
                self._write(agent, 0)
            while agent.outbox:
                self.feed(agent.outbox.popleft())
        undeleted = self.stored.intersection(self.store) - self.machine.kept()
        hold(not undeleted, f"stored, needed no longer, and never deleted: {undeleted}")
        self.sweep()
        self.judge()

    def _tried_again(self) -> bool:
        """Retry the trials that failed through no fault of the recipe, as a user may, and perhaps the others anew with
        another one. Returns whether there are any."""
        machine, recipe = self.machine, self.choose(2)
        failed = [trial for trial in machine.trials.values() if trial.status == "failed"]
        retries = [
            (trial.id, "mended" * (trial.fault == "user")) for trial in failed if recipe or trial.fault != "user"
        ]
        if not retries or not machine.names or machine.search.closed:
            return False
        self._die()
        self.resume()
        self.ended = False
        self.retried = True
        for number, digest in retries:
            self.feed(Retried(at=self.clock, trial=number, recipe=digest), last=number == retries[-1][0])
        self.look()
        return True

    def _extend(self) -> None:
        """Give the run another epoch, and perhaps another trial, as a user may."""
        spec = self.machine.spec
        if spec.stop is not None or self.machine.search.closed:
            return
        count = spec.trials or 0
        self.ended = False
        self.feed(Extended(at=self.clock, epochs=spec.epochs + 1, trials=count + self.choose(2)))
        self._propose()
        self.look()

    def join(self) -> None:
        """Let a slot join, with a new number."""
        if self.killed or self.ended or len(self.agents) >= self.slots:
            return
        agent = self.agents[self.joined] = Agent(self.joined)
        self.joined += 1
        host, rows = self.choose(self.hosts), tuple[PartitionRange, ...]()
        if host and not self.choose(3):  # it has some partitions of an earlier run
            first = self.choose(self.spec.partitions)
            rows = (PartitionRange("train", first, first + 1 + self.choose(self.spec.partitions - first)),)
        self.feed(Joined(at=self.clock, slot=agent.number, host=f"h{host}", pid=agent.number, rows=rows))

    def work(self) -> None:
        """Let an agent end its unit."""
        if agent := self._any([*self.agents.values(), *self.strays]):
            self._work(agent)

    def write(self) -> None:
        """Let an agent store a State, not always the oldest first."""
        if agent := self._any([a for a in [*self.agents.values(), *self.strays] if a.pending and not a.away]):
            self._write(agent, self.choose(len(agent.pending)))

    def hear(self) -> None:
        """Let a message arrive."""
        if agent := self._any([a for a in [*self.agents.values(), *self.strays] if a.outbox]):
            self.feed(agent.outbox.popleft())

    def lose(self) -> None:
        """Lose a slot: it died, or is only thought dead."""
        if agent := self._any(list(self.agents.values())):
            self._part(agent, dead=bool(self.choose(2)))
            self.feed(Lost(at=self.clock, slot=agent.number, reason="lost"))

    def cut(self) -> None:
        """Lose all slots of a host."""
        hosts = sorted({slot.host for slot in self.machine.slots.values()})
        if len(hosts) > 1:
            host = hosts[self.choose(len(hosts))]
            for agent in list(self.agents.values()):
                record = self.machine.workers.record(agent.number)
                if record is not None and record.host == host:
                    self._part(agent, dead=bool(self.choose(2)))
                    self.feed(Lost(at=self.clock, slot=agent.number, reason="its host is gone"))

    def leave(self) -> None:
        """Give back a slot that has nothing to do."""
        spare = self.machine.spare(self.clock, 0.0)
        if agent := self._any([agent for number, agent in self.agents.items() if number in spare]):
            self._part(agent, dead=True)
            self.feed(Left(at=self.clock, slot=agent.number, reason="spare"))

    def request(self) -> None:
        """Let the cluster have no place for some of the workers that are missing; then time may pass until those that
        are there are given back."""
        missing = self.slots - len(self.agents)
        unplaced = self.choose(missing + 1)
        self.feed(Requested(at=self.clock, unplaced=unplaced, starting=missing - unplaced))
        if self.choose(2):
            self.clock += 5.0
            self.tick()

    def fail(self) -> None:
        """Let a unit fail through no fault of its own."""
        agent = self._any([a for a in self.agents.values() if isinstance(a.task, Dispatch)])
        if agent is not None and isinstance(agent.task, Dispatch):
            self._say_failed(agent, agent.task, "system")

    def starve(self) -> None:
        """Let a unit run out of memory: it reports that, or the system kills its worker."""
        agent = self._any([a for a in self.agents.values() if isinstance(a.task, Dispatch)])
        if agent is None or not isinstance(agent.task, Dispatch):
            return
        if self.choose(2):
            self._say_failed(agent, agent.task, "memory")
        else:
            self._part(agent, dead=True)
            self.feed(Lost(at=self.clock, slot=agent.number, reason="oom", fault="memory"))

    def wipe(self) -> None:
        """Remove an agent's shared memory; sometimes it still has the States to be stored."""
        if agent := self._any([agent for agent in self.agents.values() if agent.pending]):
            agent.memory.clear()
            self.forfeit |= agent.unstored
            if self.choose(3):
                for ref, _ in agent.pending:  # it notices when it is about to store them
                    agent.outbox.append(Forgotten(at=self.clock, slot=agent.number, ref=ref))
                agent.pending.clear()

    def away(self) -> None:
        """Cut an agent off from the store, or connect it again."""
        if agent := self._any(list(self.agents.values())):
            if agent.away:
                self._back(agent)
            else:
                agent.away = True
                agent.outbox.append(StoreAway(at=self.clock, slot=agent.number, error="away"))

    def _back(self, agent: Agent) -> None:
        agent.away = False
        agent.outbox.append(StoreBack(at=self.clock, slot=agent.number))

    def tick(self) -> None:
        """Let time pass to the next deadline, if there is one."""
        if (first := self.machine.earliest()) is not None:
            self.clock = max(self.clock, first)
            hold(self.machine.due(self.clock), "a deadline is not due")
            self.feed(Tick(at=self.clock))

    def full(self) -> None:
        """End the driver as if its disk were full: the next event has no effect."""
        self._die()

    def kill(self) -> None:
        """Kill the driver while it handles the next message: between any two of its steps."""
        agent = self._any([a for a in self.agents.values() if a.outbox])
        if agent is None:
            self._die()
            return
        event = agent.outbox.popleft()
        moment = self.choose(3)
        commands = self.machine.handle(event)
        self.journal += [encode(line) for line in (journaled(event, commands) if moment else [event])]
        if moment == 2:
            for command in commands[: self.choose(len(commands) + 1)]:
                self._obey(command)
        self._die()

    def resume(self) -> None:
        """Let another driver take over."""
        self.killed = False
        self.stored.clear()
        self.machine = self._unsettled(fold([decode(line) for line in self.journal]))
        gone = tuple(
            [ref for ref in sorted(self.machine.kept(), key=str) if self.fragile and not self.choose(self.fragile)]
        )
        for ref in gone:
            del self.store[ref]
            self.swept.add(ref)
        self.forfeit |= {ref.trial for ref in gone}
        self.modelled -= self.forfeit
        self.feed(Resumed(at=self.clock, gone=gone, workers=self._workers))
        states = [state for trial in self.machine.trials.values() for state in trial.states.values()]
        hold(all(state.digest for state in states), "a State that is not durable outlived its driver")
        self.sweep()
        if not self.kind and not self.choose(8) and self.machine.names and self.machine.spec.epochs < LONGEST:
            self._extend()

    def sweep(self) -> None:
        """Delete stored States that the run does not keep: their `Durable` never came, or their driver was killed."""
        swept = set(self.store) - self.machine.kept()
        self.swept |= swept
        for ref in swept:
            del self.store[ref]

    # ---------------------------------------------------------------- the driver

    def feed(self, event: Event, last: bool = True) -> None:
        """Let the driver handle an event: journal, machine, commands."""
        if self.killed:
            return
        if isinstance(event, Durable):
            self.stored.add(event.ref)
        commands = self.machine.handle(event, last)
        self.journal += [encode(line) for line in journaled(event, commands)]
        for command in commands:
            self._obey(command)

    def _obey(self, command: Command) -> None:
        if isinstance(command, (Dispatch, Check)):
            slot = self.machine.slots[command.slot]
            workers = slot.members if isinstance(command, Dispatch) and slot.together else (command.slot,)
            gang = [agent for worker in workers if (agent := self.agents.get(worker)) is not None]
            hold(len(gang) == len(workers), f"{command} goes to a slot that is not there")
            hold(not any(agent.task for agent in gang), f"{command} goes to a busy slot")
            if isinstance(command, Dispatch):
                self._may_start(command.unit)
            for agent in gang:
                agent.task, agent.gang = command, tuple(gang if len(gang) > 1 else ())
        elif isinstance(command, GiveUp):
            for agent in [self.agents[worker] for worker in command.members if worker in self.agents]:
                if isinstance(agent.task, Dispatch) and agent.task.unit.lease == command.lease:
                    agent.task = None
        elif isinstance(command, Keep):
            self._keep(command)
        elif isinstance(command, Release):
            hold((command.slot, command.memory_key) not in self.released, f"{command} a second time")
            self.released.add((command.slot, command.memory_key))
            if command.slot in self.agents:
                self.agents[command.slot].memory.pop(command.memory_key, None)
        elif isinstance(command, Delete):
            hold(command.ref in self.store or command.ref in self.swept, f"{command} of what is not stored")
            self.store.pop(command.ref, None)
        elif isinstance(command, Replace):
            if command.slot in self.agents:
                self._part(self.agents[command.slot], dead=bool(self.choose(2)))
        elif isinstance(command, Yielded):
            for number in command.slots:
                agent = self.agents[number]
                hold(agent.task is None, f"worker {number} was given back while it worked")
                only = [
                    trial.id
                    for trial in self.machine.trials.values()
                    for state in trial.states.values()
                    if state.maker == number and not state.digest and not trial.ended
                ]
                hold(not only, f"worker {number} was given back with the only States of trials {only}")
                self._part(agent, dead=True)
        elif isinstance(command, Warn):
            hold(not command.defect, command.text)
        elif isinstance(command, Finish):
            self.feed(Finished(at=self.clock, status=command.status))
            self.ended = True

    def _keep(self, command: Keep) -> None:
        """Let the maker store a State next, or report that it cannot."""
        agent = self.agents[command.slot]
        refs = [ref for ref, _ in agent.pending]
        if command.ref in refs:
            agent.pending.insert(0, agent.pending.pop(refs.index(command.ref)))
        elif command.ref not in self.store and not any(
            isinstance(event, Durable) and event.ref == command.ref for event in agent.outbox
        ):
            agent.outbox.append(Forgotten(at=self.clock, slot=agent.number, ref=command.ref))

    def _may_start(self, unit: Unit) -> None:
        if unit.start is None:
            return
        state = self.machine.trials[unit.trial].states.get(unit.start.step)
        hold(state is not None and state.ref == unit.start, f"{unit} starts from a State that its trial does not have")
        assert state is not None
        if unit.digest:
            hold(unit.start in self.store, f"{unit} starts from a stored State that is not stored")
        else:
            hold(unit.memory_key and state.maker in self.machine.slots, f"{unit} starts from a State that nobody has")
        if unit.memory_key:
            hold((state.maker, unit.memory_key) not in self.released, f"{unit} starts from released memory")
            hold(state.maker in self.machine.slots, f"{unit} starts from the memory of a lost slot")

    def _die(self) -> None:
        self.killed = True
        for agent in list(self.agents.values()):
            self._part(agent, dead=bool(self.choose(2)))

    # ---------------------------------------------------------------- the agents

    def _any(self, agents: list[Agent]) -> Agent | None:
        return agents[self.choose(len(agents))] if agents else None

    def _part(self, agent: Agent, dead: bool) -> None:
        """Part the agent from the driver, which no longer knows it."""
        del self.agents[agent.number]
        self.forfeit |= agent.unstored
        agent.alive = not dead
        if dead:
            agent.task = None
            agent.pending.clear()
            agent.memory.clear()
            if self.choose(2):
                agent.outbox.clear()
        self.strays.append(agent)
        del self.strays[: -2 * self.slots]

    def _work(self, agent: Agent) -> None:
        task, at = agent.task, self.clock
        if task is None:
            return
        if isinstance(task, Check):
            faults = (f"trial {task.trial} is unfit",) if task.trial in self.unfit else ()
            agent.task = None
            agent.outbox.append(Checked(at=at, slot=agent.number, trial=task.trial, faults=faults, names=("loss",)))
            return
        unit = task.unit
        if unit.trial in self.sick and unit.kind != "fold" and not self.choose(8):
            self._say_failed(agent, task, "user")
            return
        if agent.gang and (agent is not agent.gang[0] or any(other.task is not task for other in agent.gang)):
            return  # the first one answers, once all are through
        content: Content = ()
        for follower in agent.gang[1:] if unit.start is not None else ():
            if self._find(unit, follower) is None:
                self._say_failed(follower, task, "store", missing=not follower.away)
                return
        if unit.start is not None:
            start_content = self._find(unit, agent)
            if start_content is None:
                self._say_failed(agent, task, "store", missing=not agent.away)
                return
            content = start_content
        for other in agent.gang or (agent,):
            other.task = None
        if unit.kind == "fold":
            values = {name: sum(array.numbers()) / rows for name, (array, rows) in (unit.totals or {}).items()}
            agent.outbox.append(Done(at=at, slot=agent.number, lease=unit.lease, parts=(), seconds=0.0, values=values))
            return
        hold(unit.partitions, f"{unit} has no partitions")
        sums = [sums_of(self.arrays, unit.kind, unit.trial, unit.epoch, p) for p in unit.partitions]
        seconds = 0.01 * 4 ** self.choose(5)  # estimates change, so slots give up the trials that they have in memory
        parts = tuple([Part(p, packed(each), seconds) for p, each in zip(unit.partitions, sums, strict=True)])
        memory_key = ""
        if unit.kind == "train":
            memory_key = f"m{unit.lease}"
            ref = Ref(unit.trial, unit.step + len(parts), unit.lease)
            state = content + tuple([(unit.epoch, p) for p in unit.partitions])
            agent.memory[memory_key] = ref, state
            same_trial = [p for p in agent.pending if p[0].trial == ref.trial]
            if len(same_trial) >= 2 and same_trial[-1][0].step % self.spec.partitions:
                agent.pending.remove(same_trial[-1])
            agent.pending.append((ref, state))
        else:
            hold(len(content) == (unit.epoch + 1) * self.spec.partitions, f"{unit} validates the wrong State")
        done = Done(at=at, slot=agent.number, lease=unit.lease, parts=parts, seconds=0.1, memory_key=memory_key)
        agent.outbox.append(done)

    def _find(self, unit: Unit, taker: Agent) -> Content | None:
        for agent in [*self.agents.values(), *self.strays]:
            if agent is not taker and self.blind and not self.choose(self.blind):
                continue
            entry = agent.memory.get(unit.memory_key)
            if entry is not None and entry[0] == unit.start:
                return entry[1]
        return self.store.get(unit.start) if unit.start is not None and not taker.away else None

    def _say_failed(self, agent: Agent, task: Dispatch, fault: Fault, missing: bool = False) -> None:
        agent.task = None
        unit = task.unit
        agent.outbox.append(
            Failed(
                at=self.clock,
                slot=agent.number,
                lease=unit.lease,
                fault=fault,
                error="failed",
                missing=unit.start if missing else None,
            )
        )

    def _write(self, agent: Agent, index: int) -> None:
        ref, content = agent.pending.pop(index)
        hold(ref not in self.store, f"{ref} is stored twice")
        self.store[ref] = content
        agent.outbox.append(Durable(at=self.clock, slot=agent.number, ref=ref, digest=str(hash(content)), bytes=1))

    def look(self) -> None:
        """Check what must hold between any two events."""
        between_events(self.machine, self.arrays, self.store, self.journal)
        modelled = {trial.id for trial in self.machine.trials.values() if trial.stored.durable_step}
        hold(self.modelled <= modelled, f"trials {self.modelled - modelled} had models, and have none")
        self.modelled |= modelled

    def judge(self) -> None:
        """Check what must hold when a run has ended."""
        at_the_end(self.machine, self.store, self.sick | self.unfit, self.forfeit, self.retried)
        for agent in self.agents.values():
            hold(not agent.memory, f"slot {agent.number} still holds {list(agent.memory)}")


LONGEST = 5
"""Epochs up to which a run is given more before its end."""
_WEIGHTS = {"join": 3, "work": 12, "write": 8, "hear": 16, "lose": 1, "fail": 1, "tick": 1}
_WEIGHTS |= {"leave": 0, "cut": 0, "request": 0, "full": 0, "kill": 0, "starve": 0, "wipe": 0, "away": 0}
