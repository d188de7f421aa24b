"""The feeds of a program and its inferences, on its driver's side: which there are, and who has room in Spark.

A `FeedSession` sends each feed; an inference is a job of the user's own, which runs when its result is used.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from hopyard.checks import flag, one_of, seconds, whole
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
        loop: the program's.
        layout: paths of the program's directory.
        token: the secret with which workers accept rows.
    """

    def __init__(self, loop: ProgramLoop, layout: Layout, token: str) -> None:
        self._loop, self._layout, self._token = loop, layout, token
        self._feeds: dict[str, FeedSession] = {}
        self._lock = threading.Lock()
        self._manifests: dict[str, Manifest] = {}
        """Key → manifest of a Dataset that was fed."""
        self._over = False
        self._core_users = 0
        """How many others need the cores of fed workers now; an inference needs them until the program's end."""
        self._has_inferences = False
        """Whether there are inferences: tasks of Spark, whose errors do not say why the program failed."""

    def feed(self, data: Any, *, epochs: int, name: str, uneven: Any, end: bool, timeout: float | None) -> int:
        """See `Program.feed`."""
        epochs = whole("feed(epochs=)", epochs, 0)
        uneven, end = one_of("feed(uneven=)", uneven, RULES), flag("feed(end=)", end)
        if timeout is not None:
            timeout = seconds("feed(timeout=)", timeout, none="for any")
        source = source_of(data)
        if isinstance(data, Dataset):
            self._need(data.prepare())
        feed = self._session("feed", name, uneven)
        if feed.machine.uneven != uneven:
            raise SpecError(f"feed(uneven={uneven!r}): the feed {name!r} was opened with {feed.machine.uneven!r}")
        return feed.feed(source, epochs, end, timeout)

    def over(self) -> None:
        """Release the rows that the program was fed: nothing of it runs any more."""
        if self._has_inferences and self._loop.status.status == "failed":
            log.error("%s: %s", self._layout.root, self._loop.status.cause)
        with self._lock:
            self._over = True
            manifests = list(self._manifests.values())
        for manifest in manifests:
            spare(manifest, self._layout.root)

    def _need(self, manifest: Manifest) -> None:
        """Keep the rows of a Dataset until the program is over, as a restart is fed them again."""
        with self._lock:
            if not self._over:
                self._manifests[manifest.key] = manifest
                need(manifest, self._layout.root)

    def end(self, name: str) -> None:
        """End a feed: no more rows come."""
        self._session("end_feed", name, "allow").end()

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
        from hopyard.feeds.spark_tasks import inferring, inferring_rows

        feed = self._session("infer", name, "allow")
        self._has_inferences = True
        route = Route(feed.endpoints(), self._token, feed.machine.name, feed.machine.epochs, timeout=timeout)
        self._use_cores()  # until the program's end: an inference may run at any time
        if is_frame(data):
            zone = data.sparkSession.conf.get("spark.sql.session.timeZone", "UTC")
            return mapped(data, inferring(route, schema, zone), schema)
        return data.mapPartitionsWithIndex(inferring_rows(route))

    def _session(self, method: str, name: str, uneven: Any) -> FeedSession:
        """Return the session of the feed with this name; a new feed gets this rule."""
        name = feed_named(name, method)
        with self._lock:
            if name not in self._feeds:
                spec = self._loop.spec
                machine = FeedMachine(name, uneven, spec.restart_scope if spec.max_restarts else "")
                self._feeds[name] = FeedSession(machine, self._loop, self._layout, self._token, self._room)
            return self._feeds[name]

    @contextlib.contextmanager
    def _room(self, spark: bool) -> Iterator[None]:
        """Make room for Spark's tasks where each executor has one core: fed workers release theirs."""
        if not spark:
            yield
            return
        try:
            self._use_cores()
            yield
        finally:
            with self._lock:
                self._core_users -= 1
                agents = self._loop.agents
                if not self._core_users and not self._loop.status.ended and isinstance(agents, ReleasesCores):
                    agents.reacquire_cores()

    def _use_cores(self) -> None:
        with self._lock:
            self._core_users += 1
        self._release()

    def _release(self) -> None:
        agents = self._loop.agents
        if isinstance(agents, ReleasesCores):
            agents.release_cores(self._loop.status.slots)

    def assigned(self) -> None:
        """Each task has its slot: release the cores that other jobs may use or need, and feed tasks that were started
        again what was fed before."""
        if self._core_users:
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
        """Handle a task's message about a feed."""
        with self._lock:
            feed = self._feeds.get(message.feed)
        if feed is not None:
            feed.on_message(message)
