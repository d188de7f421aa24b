"""The feeds of a program and its inferences, from its driver's side: which there are, and who has room in Spark.

Each feed is sent by a `FeedSession`; an inference is a job of the user's own, which comes when its result is used.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from hopyard.checks import one_of, seconds, whole
from hopyard.core.programs.feeding import FeedMachine, feed_named
from hopyard.core.programs.messages import BatchesReady, RowsTaken
from hopyard.core.programs.uneven import RULES
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.data.shared.needed import need, spare
from hopyard.driver.programs.feed_session import FeedSession
from hopyard.driver.programs.loop import ProgramLoop
from hopyard.driver.programs.sources import source_of
from hopyard.errors import HopyardError, SpecError
from hopyard.feeds.sender import Route
from hopyard.ports import ReleasesCores
from hopyard.sparkapi.dataframe import checked, is_frame, mapped
from hopyard.store.layout import Layout

log = logging.getLogger(__name__)


class Feeding:
    """Owner of a program's feeds. `feed` and `infer` may be called from several threads, for several feeds.

    Args:
        loop: of the program.
        layout: of its directory.
        token: lets rows in.
        release_cores: other jobs of the session have the cores of fed workers all the time.
    """

    def __init__(self, loop: ProgramLoop, layout: Layout, token: str, release_cores: bool = False) -> None:
        self._loop, self._layout, self._token = loop, layout, token
        self._feeds: dict[str, FeedSession] = {}
        self._lock = threading.Lock()
        self._kept = contextlib.ExitStack()
        """What inferences, which may come at any time, keep to the program's end."""
        self._needed: dict[str, Manifest] = {}
        """Key → the rows of a Dataset that was fed."""
        self._over = False
        self._released = int(release_cores)
        """How many need the cores of fed workers right now; an inference needs them to the program's end."""
        self._asked = False
        """Whether there are inferences: tasks of Spark, whose errors do not say why the program failed."""

    def feed(self, data: Any, *, epochs: int, name: str, uneven: Any, end: bool, timeout: float | None) -> int:
        """See `Program.feed`."""
        epochs = whole("feed(epochs=)", epochs, 0)
        one_of("feed(uneven=)", uneven, RULES)
        if timeout is not None:
            timeout = seconds("feed(timeout=)", timeout, none="for any")
        source = source_of(data)
        if isinstance(data, Dataset):
            self._need(data.prepare())
        feed = self._named("feed", name, uneven)
        if feed.machine.uneven != uneven:
            raise SpecError(f"feed(uneven={uneven!r}): the feed {name!r} was opened with {feed.machine.uneven!r}")
        return feed.feed(source, epochs, end, timeout)

    def over(self) -> None:
        """Nothing of the program runs any more: rows that it was fed may go."""
        if self._asked and self._loop.status.status == "failed":
            log.error("%s: %s", self._layout.root, self._loop.status.cause)
        with self._lock:
            self._over = True
            manifests = list(self._needed.values())
        for manifest in manifests:
            spare(manifest, self._layout.root)

    def _need(self, manifest: Manifest) -> None:
        """The rows of a Dataset stay until the program is over, as a restart is fed them again."""
        with self._lock:
            if not self._over:
                self._needed[manifest.key] = manifest
                need(manifest, self._layout.root)

    def end(self, name: str) -> None:
        """No more rows of this feed."""
        self._named("end", name, "join").end()

    def infer(self, data: Any, *, schema: Any, name: str, timeout: float | None) -> Any:
        """See `Program.infer`."""
        if timeout is not None:
            timeout = seconds("infer(timeout=)", timeout, none="for any")
        if is_frame(data):
            checked(data, "data")
            if schema is None:
                raise SpecError(
                    'infer(schema=…) must name the columns of the answers, for example "prediction double", got None'
                )
        elif not hasattr(data, "mapPartitionsWithIndex"):
            raise SpecError(f"infer(…) must be given a DataFrame or an RDD, got {type(data).__name__}")
        from hopyard.feeds.inference import inferring, inferring_rows

        feed = self._named("infer", name, "join")
        self._asked = True
        route = Route(feed.endpoints(), self._token, name, feed.machine.epochs, timeout=timeout)
        self._kept.enter_context(self._room(True))
        if is_frame(data):
            zone = data.sparkSession.conf.get("spark.sql.session.timeZone", "UTC")
            return mapped(data, inferring(route, schema, zone), schema)
        return data.mapPartitionsWithIndex(inferring_rows(route))

    def _named(self, what: str, name: str, uneven: Any) -> FeedSession:
        """The feed of this name; made with this rule where it is new."""
        feed_named(name, what)
        with self._lock:
            if name not in self._feeds:
                spec = self._loop.spec
                machine = FeedMachine(name, uneven, spec.restart_scope if spec.max_restarts else "")
                self._feeds[name] = FeedSession(machine, self._loop, self._layout, self._token, self._room)
            return self._feeds[name]

    @contextlib.contextmanager
    def _room(self, spark: bool) -> Iterator[None]:
        """Room for Spark's tasks where each executor has one core: fed workers release theirs."""
        if not spark:
            yield
            return
        with self._lock:
            self._released += 1
        try:
            self._release()
            yield
        finally:
            with self._lock:
                self._released -= 1
                agents = self._loop.agents
                if not self._released and not self._loop.status.ended and isinstance(agents, ReleasesCores):
                    agents.reacquire_cores()

    def _release(self) -> None:
        agents = self._loop.agents
        if isinstance(agents, ReleasesCores):
            agents.release_cores(self._loop.status.slots)

    def assigned(self) -> None:
        """Each task has its slot. Other jobs may have their cores, where they are lent or needed; tasks that were
        started again get what was fed before."""
        if self._released:
            try:
                self._release()
            except HopyardError as error:
                log.warning("%s: %s", self._layout.root, error)
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            if feed.lacks():
                threading.Thread(target=feed.catch_up, name="hopyard-replay", daemon=True).start()

    def on_feed_message(self, message: RowsTaken | BatchesReady) -> None:
        """A task says this of a feed."""
        with self._lock:
            feed = self._feeds.get(message.feed)
        if feed is not None:
            feed.on_message(message)
