"""Which process runs which file of tests, where xdist has several: files that share what is dear to start go to one.

A session of Spark takes 25 seconds of a core until its first job is done, TensorFlow five in each process that imports
it. So the first process takes files with the fixture `spark`, the second those that import TensorFlow, and then helps
the first; the others take the rest. The longest files begin first, else one of them would run alone at the end.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling

KINDS = {
    "spark": r"\bspark: Any|getfixturevalue\(\"spark",
    "tensorflow": r"mark\.tensorflow|import tensorflow|import keras",
}
WANTED = (("spark", "", "tensorflow"), ("tensorflow", "spark", ""), ("", "tensorflow", "spark"))
"""What the first process takes first, second and last; what the second does; what all others do."""
LONGEST = """
    spark/inference/test_predict data/from_spark/test_spark_dataset engines/test_spark spark/ml/test_model
    spark/ml/test_estimator engines/test_spark_programs compat/test_pipeline test_example_programs compat/test_cluster
    spark/test_connect feeds/test_sender test_gangs test_examples spark/tfrecord/test_tfrecords compat/test_dfutil
    test_reference
    frameworks/test_keras_model frameworks/test_keras_sharing test_keras_bad_input frameworks/test_keras_state
    test_keras_runs frameworks/test_keras_metrics exchange/test_keras_identities engines/test_forked_frameworks
    agent/programs/patches/test_tensorflow1 frameworks/test_tensorflow_runtime frameworks/test_internals
    frameworks/test_keras_torch test_keras_saved
    driver/test_saved_state
    driver/runs/test_ownership driver/programs/test_program driver/runs/test_search driver/runs/test_faults
    test_bad_input driver/programs/test_feed driver/runs/resume/test_extension test_liveness driver/runs/test_copies
    test_exact driver/runs/test_lives cli/test_cli exchange/test_slow_network data/partitions/test_cache test_doctor
    store/bulk/test_bulk frameworks/test_torch_swap core/runs/test_worlds engines/test_spark_sessions engines/test_warm
    engines/test_bare_hosts engines/test_homes engines/test_spark_hosts
    test_growth test_paths driver/test_saved_model agent/test_companion driver/runs/test_run
    engines/test_templates driver/runs/test_lossy data/test_dataset exchange/test_identities spark/local/test_session
    test_filesystems driver/runs/test_kept_models driver/runs/test_objectives feeds/test_receiver test_docs test_ports
"""
"""By kind, the files that took more than 25 seconds, roughly the longest first."""


def kind(text: str) -> str:
    """Return what the tests of a file share, from its text."""
    return next((kind for kind, words in KINDS.items() if re.search(words, text)), "")


def weight(path: str) -> int:
    """Return a number that is the smaller the sooner a file must begin."""
    name = path.removeprefix("tests/").removesuffix(".py")
    files = LONGEST.split()
    return files.index(name) if name in files else len(files)


def rank(process: int, kind: str, path: str) -> tuple[int, int]:
    """Return what is the smaller the sooner a process, by its number, takes a file."""
    return WANTED[min(process, len(WANTED) - 1)].index(kind), weight(path)


class ByKind(LoadFileScheduling):
    """xdist's scheduler of whole files, with another choice of the next one."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        self._root = Path(config.rootpath)
        self._kinds: dict[str, str] = {}

    def _assign_work_unit(self, node: Any) -> None:
        process = self.nodes.index(node)
        first = min(self.workqueue, key=lambda path: rank(process, self._kind(path), path))
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _kind(self, path: str) -> str:
        if path not in self._kinds:
            self._kinds[path] = kind((self._root / path).read_text())
        return self._kinds[path]
