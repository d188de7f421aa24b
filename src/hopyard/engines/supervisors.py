"""Seats: places in somebody else's cluster where one agent each can run, as the driver sees them.

A sitter (`sitter.py`) that was placed somewhere dials in and is a seat. Slots that want an agent wait in a queue; seats
that are free take them in turn. When a seat's line ends, its slot is lost; when an agent ends, its seat is free again,
so a new agent needs nothing new from the cluster. A seat that does not do as it is told is given up: whoever placed it
cancels its job, and its slot gets another once it is gone, as an agent and its successor have one name on the wire.
Tasks of seats can be told to step aside: they end, and their agents go on. The slot of such an agent is then held by
nobody, and later by the task of another seat that is free. Knows no Spark: whoever places sitters is a function.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hopyard.engines.supervisor import lasting
from hopyard.errors import ResourceError
from hopyard.ports import OutOfMemory
from hopyard.system.network import listen

log = logging.getLogger(__name__)

HELLO_BYTES = 1 << 16
"""What a stranger may say before it must have shown the token."""
HELLO_SECONDS = 10.0
CLOSE_SECONDS = 5.0
"""How long sitters may take to leave."""
SPARE_SECONDS = 2.0
"""After which a seat that nobody wants is given back."""
AWAY_SECONDS = 5.0
"""After which a sitter that does not confirm an end, or does not leave, is given up, and after which a job must have
ended whose seat is gone."""
GONE_SECONDS = 15.0
"""After which a sitter that was given up counts as gone, whatever became of it."""


@dataclass(slots=True)
class Seat:
    """One sitter."""

    line: socket.socket
    since: float
    heard: bytearray = field(default_factory=bytearray)
    admitted: bool = False
    host: str = ""
    executor: str = ""
    """Host, and process of the executor there."""
    gpus: tuple[str, ...] = ()
    job: int = -1
    """Whose task started it."""
    task: bool = True
    """Its task is there; false: it has stepped aside."""
    slot: int = -1
    """Whose agent runs there; −1: none."""
    holds: int = -1
    """The slot of another seat's agent, whose own task is not there any more; −1: none."""
    used: bool = False
    """It had a slot before."""
    ending: bool = False
    """An agent of it is being ended; it takes no other before it says so."""
    ends: int = -1
    """The slot whose agent is being ended there, and may still be at work; −1: none."""
    leaving: bool = False
    """It was told to leave."""
    given_up: bool = False
    """It does not do as it is told: its job is cancelled, which ends it."""
    why: str = ""
    """Its last words."""


class Seats:
    """Owner of the seats of one run. A thread of its own listens; everything else is called by the driver's loop.

    Args:
        host: by which sitters dial; see `hosts.address_to_bind`.
        port: 0: any that is free.
        token: lets sitters in.
        log_of: slot → the file that takes what its agent prints.
    """

    def __init__(self, host: str, port: int, token: str, log_of: Callable[[int], Path]) -> None:
        self._token = token
        self._log_of = log_of
        self._lock = threading.RLock()
        self._seats: dict[int, Seat] = {}
        self._wanted: deque[int] = deque()
        self._aside: set[int] = set()
        self._lost: list[tuple[int, str]] = []
        self._seatless: dict[int, float] = {}
        """Job → since when its task has no seat any more: it is about to end, or to run again."""
        self._abandoned: set[int] = set()
        self._hopeless: str = ""
        self._logs: dict[int, IO[bytes]] = {}
        self._open = True
        self._dismissed = False
        """Whoever comes is to leave."""
        self.came = 0
        """Sitters that ever dialled in."""
        try:
            self._listener = listen(host, port)
        except OSError as error:
            raise ResourceError(f"port {port} on {host}: {error}; give another port=, or port=0 for any") from error
        self.port = int(self._listener.getsockname()[1])
        self._listener.setblocking(False)
        self._bell, self._ringer = os.pipe()
        """Readable while there is something to ask `lost` for."""
        self._wake, self._waker = os.pipe()
        for end in (self._bell, self._ringer, self._wake, self._waker):
            os.set_blocking(end, False)
        self._select = selectors.DefaultSelector()
        self._select.register(self._listener, selectors.EVENT_READ, self._accept)
        self._select.register(self._wake, selectors.EVENT_READ, lambda: None)
        self._thread = threading.Thread(target=self._run, name="hopyard-seats", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- called by the loop

    def start(self, slot: int) -> None:
        """This slot wants an agent."""
        with self._lock:
            self._wanted.append(slot)
            self._fill()

    def end(self, slot: int) -> None:
        """End its agent, or leave the queue."""
        with self._lock:
            if slot in self._wanted:
                self._wanted.remove(slot)
            self._lost = [(number, reason) for number, reason in self._lost if number != slot]
            seat = self._of(slot)
            if seat is not None:
                seat.ending, seat.ends = True, slot
                self._vacate(seat)
                self._tell(seat, {"end": slot})
            self._close_log(slot)

    def lost(self) -> list[tuple[int, str]]:
        """(slot, reason) of those that ended since last asked. Raises ResourceError when there is no hope."""
        with self._lock:
            if not self._open:
                return []
            with contextlib.suppress(BlockingIOError):
                os.read(self._bell, 4096)
            gone, self._lost = self._lost, []
            now = time.monotonic()
            for seat in list(self._seats.values()):
                if seat.given_up:
                    if now - seat.since > GONE_SECONDS:
                        self._drop(seat, "")
                elif (seat.ending or seat.leaving) and now - seat.since > AWAY_SECONDS:
                    self._give_up(seat)
                elif self._idle(seat) and not self._wanted and now - seat.since > SPARE_SECONDS:
                    self._dismiss(seat)
            for job, since in list(self._seatless.items()):
                if now - since > AWAY_SECONDS:
                    self._abandon(job)
            if self._hopeless and not gone:
                raise ResourceError(self._hopeless)
            return gone

    def abandoned(self) -> set[int]:
        """Jobs, since last asked, that hold no seat and do not end: they are to be cancelled."""
        with self._lock:
            found, self._abandoned = self._abandoned, set()
            return found

    def watch(self) -> list[int]:
        """A descriptor that is readable when `lost` has something to say."""
        return [self._bell] if self._open else []

    def waits(self, slot: int) -> bool:
        """Whether no seat has it yet."""
        return slot in self._wanted

    def device(self, slot: int) -> str:
        """ "cuda" where Spark gave the seat a GPU."""
        with self._lock:
            seat = self._of(slot)
            return "cuda" if seat is not None and seat.gpus else "cpu"

    def executor(self, slot: int) -> str:
        """Where its agent is, "host-process"; equal for those of one executor; "": nowhere yet."""
        with self._lock:
            seat = self._of(slot)
            return "" if seat is None else seat.executor

    def aside(self, slots: Collection[int]) -> dict[int, int]:
        """Let the tasks of these slots end, those that come later too, until `back`.

        Returns:
            Job → slot, of the tasks that were told so now.
        """
        told = {}
        with self._lock:
            self._aside.update(slots)
            for seat in list(self._seats.values()):
                slot = max(seat.slot, seat.holds)
                if slot in self._aside and seat.task and not seat.leaving:
                    told[seat.job] = slot
                    self._step_aside(seat)
            self._fill()
        return told

    def back(self) -> None:
        """Slots are held again, by tasks that come from now on."""
        with self._lock:
            self._aside.clear()
            self._fill()

    def dismiss(self) -> None:
        """Let all agents end: those that were told to have a moment for it, then their sitters end them and leave, and
        so do those that come from now on."""
        with self._lock:
            if not self._open or self._dismissed:
                return
            self._wanted.clear()
            self._dismissed = True
        patience = time.monotonic() + 0.5
        while time.monotonic() < patience and self.taken:
            time.sleep(0.005)
        with self._lock:
            for seat in list(self._seats.values()):
                self._tell(seat, {"leave": True})

    def close(self) -> None:
        """Dismiss all, and let nobody in any more."""
        self.dismiss()
        if not self._open:
            return
        patience = time.monotonic() + CLOSE_SECONDS
        while time.monotonic() < patience and self._seats:
            time.sleep(0.005)
        with self._lock:
            self._open = False
            self._ring(self._waker)
        self._thread.join(CLOSE_SECONDS)
        with self._lock:
            for seat in list(self._seats.values()):
                self._drop(seat, "")
            self._lost.clear()
            for slot in list(self._logs):
                self._close_log(slot)
            self._listener.close()
            self._select.close()
            for end in (self._bell, self._ringer, self._wake, self._waker):
                os.close(end)

    # ---------------------------------------------------------------- asked by whoever places sitters

    @property
    def taken(self) -> int:
        """Seats with an agent."""
        with self._lock:
            return sum(seat.slot >= 0 for seat in self._seats.values())

    @property
    def due(self) -> int:
        """Tasks that there should be: one for each slot that wants a seat or has an agent, but those that are aside."""
        with self._lock:
            running = [seat.slot for seat in self._seats.values() if seat.slot >= 0]
            return len(self._wanted) + sum(slot not in self._aside for slot in running)

    @property
    def missing(self) -> int:
        """Slots that wait for a seat."""
        return len(self._wanted)

    def give_up(self, why: str) -> None:
        """There will be no (more) seats."""
        with self._lock:
            self._hopeless = self._hopeless or why
            if self._open:
                self._ring(self._ringer)

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        while self._open:
            for key, _ in self._select.select():
                with self._lock:
                    if self._open:
                        key.data()

    def _accept(self) -> None:
        try:
            line, _ = self._listener.accept()
        except OSError as error:
            log.warning("a sitter cannot be let in: %s", error)
            time.sleep(0.1)  # no more files may be open; the kernel keeps the line until there are
            return
        lasting(line)
        line.setblocking(False)
        now = time.monotonic()
        for stranger in [
            seat for seat in self._seats.values() if not seat.admitted and now - seat.since > HELLO_SECONDS
        ]:
            self._drop(stranger, "")
        seat = self._seats[line.fileno()] = Seat(line, now)
        self._select.register(line, selectors.EVENT_READ, lambda: self._hear(seat))

    def _hear(self, seat: Seat) -> None:
        try:
            data = seat.line.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(seat, _last_words(seat))
            return
        seat.heard += data
        if not seat.admitted and len(seat.heard) > HELLO_BYTES:
            self._drop(seat, "")
            return
        while (end := seat.heard.find(b"\n")) >= 0:
            text = bytes(seat.heard[:end])
            del seat.heard[: end + 1]
            try:
                message = json.loads(text)
                if not seat.admitted:
                    if not self._admit(seat, message):
                        return
                else:
                    self._take(seat, message)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                self._drop(seat, f"it said what cannot be read ({type(error).__name__})")
                return

    def _admit(self, seat: Seat, message: Any) -> bool:
        token = message.get("token") if isinstance(message, dict) else None
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self._token.encode()):
            log.warning("a stranger dialled the port of sitters; it was not let in")
            self._drop(seat, "")
            return False
        seat.admitted = True
        seat.host, seat.executor, seat.job = str(message["host"]), str(message["executor"]), int(message["job"])
        seat.gpus = tuple(map(str, message["gpus"]))
        self.came += 1
        self._seatless.pop(seat.job, None)
        if self._dismissed:
            self._dismiss(seat)
        self._fill()
        return True

    def _take(self, seat: Seat, message: dict[str, Any]) -> None:
        if "log" in message:
            self._write(int(message["log"]), str(message["text"]))
        elif "why" in message:
            seat.why = str(message["why"])
        elif "free" in message or "ended" in message:
            slot = int(message.get("ended", -1))
            if seat.slot == slot >= 0:
                self._vacate(seat)
                told = str(message["story"])
                self._gone(slot, OutOfMemory(told) if message.get("memory") else told)
            else:
                seat.ending, seat.ends = False, -1  # as it was told to, or by itself just before
            if not seat.task and seat.slot < 0:
                self._dismiss(seat)
            self._fill()

    def _fill(self) -> None:
        """Seats that are free take slots that wait for an agent, then those that no task holds."""
        for seat in list(self._seats.values()):
            if not self._idle(seat):
                continue
            if startable := self._startable():
                seat.slot, seat.used = startable[0], True
                self._wanted.remove(seat.slot)
                self._tell(seat, {"start": seat.slot})
                if seat.slot in self._aside:
                    self._step_aside(seat)
            elif unheld := self._unheld():
                near = [other.slot for other in unheld if other.executor == seat.executor]
                seat.holds, seat.used = (near or [other.slot for other in unheld])[0], True
            elif self._aside and not seat.used:
                self._dismiss(seat)  # it was asked for before others were to have the room

    def _startable(self) -> list[int]:
        """Slots that wait for an agent, and whose last one is gone."""
        ending = {seat.ends for seat in self._seats.values()}
        return [slot for slot in self._wanted if slot not in ending]

    def _unheld(self) -> list[Seat]:
        held = {seat.holds for seat in self._seats.values()} | self._aside
        return [seat for seat in self._seats.values() if seat.slot >= 0 and not seat.task and seat.slot not in held]

    @staticmethod
    def _idle(seat: Seat) -> bool:
        return seat.admitted and seat.task and max(seat.slot, seat.holds) < 0 and not seat.ending and not seat.leaving

    def _step_aside(self, seat: Seat) -> None:
        """Let its task end; where it only held a slot, there is nothing else to it."""
        if seat.slot >= 0:
            seat.task = False
            self._tell(seat, {"aside": True})
        else:
            self._dismiss(seat)

    def _dismiss(self, seat: Seat) -> None:
        if not seat.leaving:
            seat.leaving, seat.since = True, time.monotonic()
        self._tell(seat, {"leave": True})

    def _give_up(self, seat: Seat) -> None:
        """What it was told it finds there, should it go on."""
        log.warning("a sitter on %s does not answer: its Spark job is cancelled", seat.host)
        seat.given_up, seat.leaving, seat.since, seat.holds = True, True, time.monotonic(), -1
        if seat.task:
            self._abandon(seat.job)
        self._tell(seat, {"leave": True})

    def _abandon(self, job: int) -> None:
        self._seatless.pop(job, None)
        self._abandoned.add(job)

    def _vacate(self, seat: Seat) -> None:
        """It has an agent no more, and nobody needs to hold the slot of it."""
        for one in self._seats.values():
            if one is seat or one.holds == seat.slot:
                one.holds, one.since = -1, time.monotonic()
        seat.slot = -1

    def _tell(self, seat: Seat, order: dict[str, Any]) -> None:
        try:
            seat.line.sendall(json.dumps(order).encode() + b"\n")
        except OSError:  # a few bytes that find no room: nobody reads there any more
            self._drop(seat, f"its Spark task on {seat.host} does not listen")

    def _drop(self, seat: Seat, why: str) -> None:
        if self._seats.pop(seat.line.fileno(), None) is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._select.unregister(seat.line)
        seat.line.close()
        seat.leaving, seat.ends = True, -1
        if seat.admitted and seat.task and not seat.given_up:
            self._seatless[seat.job] = time.monotonic()
        if (slot := seat.slot) >= 0:
            self._vacate(seat)
            self._gone(slot, why)
        if self._open:
            self._fill()

    def _gone(self, slot: int, reason: str) -> None:
        self._close_log(slot)
        self._lost.append((slot, reason))
        self._ring(self._ringer)

    def _of(self, slot: int) -> Seat | None:
        return next((seat for seat in self._seats.values() if seat.slot == slot >= 0), None)

    def _write(self, slot: int, text: str) -> None:
        file = self._logs.get(slot)
        try:
            if self._of(slot) is None:  # its last words
                with self._log_of(slot).open("ab") as ended:
                    ended.write(text.encode())
                return
            if file is None:
                path = self._log_of(slot)
                path.parent.mkdir(parents=True, exist_ok=True)
                file = self._logs[slot] = path.open("ab", buffering=0)
            file.write(text.encode())
        except OSError as error:  # the journal says so too, if the disk is full; training need not end for a log
            log.warning("slot %d: its log cannot be written: %s", slot, error)

    def _close_log(self, slot: int) -> None:
        file = self._logs.pop(slot, None)
        if file is not None:
            file.close()

    @staticmethod
    def _ring(end: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(end, b"x")


def _last_words(seat: Seat) -> str:
    """Why its line ended, as far as it is known."""
    if not seat.why:
        return f"its {'Spark task' if seat.task else 'sitter'} on {seat.host} ended"
    idle = (
        "" if seat.task else " (no task held it then: with dynamic allocation, Spark removes executors that are idle)"
    )
    return seat.why + idle
