"""The two functions of clusterone 0.15 by which the classic tutorials of distributed TensorFlow name their folders."""

from __future__ import annotations

import os


def get_data_path(dataset_name: str, local_root: str, local_repo: str, path: str) -> str:
    """Return local_root/local_repo/path, as on any machine outside of that cloud; `dataset_name` was its name there."""
    return os.path.join(os.path.abspath(local_root), local_repo, path.lstrip("/"))  # noqa: PTH100, PTH118 - texts, as before


def get_logs_path(root: str) -> str:
    """Return the folder for logs and checkpoints: in a task of a program the program's directory, which all tasks share
    and TensorBoard shows, else `root`."""
    return os.environ.get("HOPYARD_DIRECTORY") or os.path.abspath(root)  # noqa: PTH100 - a text, as before
