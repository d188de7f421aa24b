"""The files of a saved model, which change together: `config.json` and those that it lists, with their digests.

`save` writes and syncs new files in a folder `.part-…` beside the old ones. Then their `config.json` replaces the old
one: this step alone decides which model is there. After it the other files move to their places. Until they have, or
where the writer was killed, a reader finds them in `.part-…`, by their digests. So one of the two models is whole at
any moment.

At a URL the files are put one by one, `config.json` at last. A model that is there is not replaced, as that takes more
than one step.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import msgspec
from blake3 import blake3

from hopyard.checks import path
from hopyard.data.manifest import Manifest
from hopyard.driver.pickling import read_trusted
from hopyard.errors import ResourceError, RunDirectoryError
from hopyard.filesystems import Directory, absolute, reaching
from hopyard.spec import Config, RunSpec
from hopyard.store.layout import Layout
from hopyard.system.files import FULL, sync
from hopyard.system.scratch import room_in, scratch_folder
from hopyard.text import shown

CONFIG, STATE, RECIPE, TRANSFORM = "config.json", "state.safetensors", "recipe.pkl", "transform.pkl"
WEIGHTS = "model.safetensors"
NAMES = (WEIGHTS, "model.keras", STATE, RECIPE, TRANSFORM)
"""Names of the files that a saved model may have beside `config.json`."""
OWN = "trainable"
"""Stands for the framework when the recipe returned a Trainable of the user's own."""
FORMAT = 1
"""Version of the folder."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `config.json`."""

    format: int = FORMAT
    python: str
    trial: int
    config: Config
    epoch: int | None
    """The epoch at whose end the weights were these, from 1; None: they are from the middle of one."""
    metrics: dict[str, float | None]
    framework: str
    backend: str = ""
    """Keras' backend."""
    spec: RunSpec
    manifest: Manifest
    digests: dict[str, str]
    """File → BLAKE3 of its content, in hexadecimal: all files of the model but this one."""


def place(argument: str, value: str | Path) -> Path | str:
    """Return the folder that an argument names: a path, or a URL as text. Raises SpecError where it is neither."""
    text = path(argument, value, "a path or URL")
    return absolute(text) if "://" in text else Path(text)


def parse(content: bytes, name: str | Path = CONFIG) -> Saved:
    """Return the contents of a `config.json`.

    Raises:
        RunDirectoryError: `save` did not write it, or that of another version did.
    """
    try:
        about = msgspec.json.decode(content, type=Saved)
    except msgspec.MsgspecError as error:
        raise RunDirectoryError(f"{name}: not written by run.best.save(…): {error}") from error
    if about.format != FORMAT:
        raise RunDirectoryError(
            f"{name}: a saved model of version {about.format}, this Hopyard reads version {FORMAT}: upgrade it"
        )
    return about


def read(root: Path | str, trust: bool = False, without: Collection[str] = ()) -> tuple[Saved, dict[str, bytes]]:
    """Return the contents of `config.json`, and name → content of all files of one model, also while another is saved
    there.

    Args:
        root: the folder, or its URL.
        trust: read pickles even where others than this user and root may write them, which cannot be seen at a URL.
        without: names of files that are not read.

    Raises:
        RunDirectoryError: no saved model, or one of which a file is gone or was changed: without its transform, or with
            another's weights, it would predict something else; others may write a pickle.
    """
    config = _config(root)
    while True:
        about = parse(config, f"{root}/{CONFIG}")
        digests = {name: digest for name, digest in about.digests.items() if name not in without}
        try:
            return about, {CONFIG: config} | {
                name: _content(root, name, digest, trust) for name, digest in digests.items()
            }
        except RunDirectoryError:
            before, config = config, _config(root)
            if config == before:
                raise


def _config(root: Path | str) -> bytes:
    """Return the content of `config.json`."""
    if isinstance(root, str):
        return _fetched(root, CONFIG)
    try:
        return (root / CONFIG).read_bytes()
    except OSError as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        fault = f"no {CONFIG} here" if missing else f"{CONFIG} cannot be read ({error.strerror})"
        hint = "; this is a run directory: hopyard.load(…) opens it, and .best.model() is its model"
        raise RunDirectoryError(
            f"{root}: {fault}; it must be a folder that run.best.save(…) wrote{hint if Layout(root).exists else ''}"
        ) from error


def _fetched(url: str, name: str) -> bytes:
    with reaching(f"{url}/{name}", "read", RunDirectoryError, "directory", "see whether run.best.save(…) wrote it"):
        return Directory(url).get(name)


def _content(root: Path | str, name: str, digest: str, trust: bool) -> bytes:
    """Return the content of a file: the one with this digest, on its way to its place or there. (In this order: a file
    that moves meanwhile is seen in one of the two.)"""
    if isinstance(root, str):
        if name in (RECIPE, TRANSFORM) and not trust:
            raise RunDirectoryError(
                f"{root}/{name}: who may write there cannot be seen, and opening a pickle runs its code. If you trust "
                "them, give trust=True, `--trust` on the command line; or give recipe= to hy.load_model"
            )
        content = _fetched(root, name)
        if blake3(content).hexdigest() != digest:
            raise RunDirectoryError(f"{root}/{name}: changed since run.best.save(…) wrote it; save it again")
        return content
    fault = "No such file or directory"
    for file in (*root.glob(f".part-*/{name}"), root / name):
        try:
            content = read_trusted(file, trust) if name in (RECIPE, TRANSFORM) else file.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            fault = str(error.strerror)
            continue
        if blake3(content).hexdigest() == digest:
            return content
        fault = "changed since run.best.save(…) wrote it"
    raise RunDirectoryError(f"{root / name}: {fault}; copy or save the whole folder again")


@contextmanager
def uploading_files(url: str) -> Iterator[Path]:
    """Yield an empty folder for the files of a model, which are put at a URL at the end of the block, `config.json` at
    last.

    Raises:
        RunDirectoryError: a saved model is there already, or the URL cannot be written to.
        ResourceError: there is no room, here or there.
    """

    def saving() -> AbstractContextManager[None]:
        return reaching(url, "save a model in", RunDirectoryError, "save", "give a URL that can be written to")

    taken = f"save({shown(url)}): a saved model is there, and one at a URL is not replaced; give another name"
    with saving():
        directory = Directory(url)
        directory.make()
        if directory.has(CONFIG):
            raise RunDirectoryError(taken)
    with scratch_folder("save") as scratch:
        folder = scratch / "model"
        with room_in(folder, url):
            folder.mkdir()
            yield folder
        with saving():
            for file in folder.iterdir():
                if file.name != CONFIG:
                    directory.put(file.name, file)
            if not directory.create(CONFIG, (folder / CONFIG).read_bytes()):
                raise RunDirectoryError(taken)


@contextmanager
def replacing_files(directory: Path) -> Iterator[Path]:
    """Yield an empty folder for the files of a model, `config.json` included. At the end of the block they replace
    those of a model that was saved in `directory`. Where something is raised, or the process is killed, the old model
    stays.

    Args:
        directory: made when missing. Other files in it are left as they are.

    Raises:
        RunDirectoryError: files that would be replaced are not those of a saved model; this user may not write there.
        ResourceError: there is no room.
    """
    made: list[Path] = []
    try:
        made += [folder for folder in (directory, *directory.parents) if not folder.exists()]
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        with _locked(directory):
            _require_own(directory)
            part = Path(tempfile.mkdtemp(prefix=".part-", dir=directory))
            try:
                part.chmod(0o755)
                yield part
                names = [file.name for file in part.iterdir() if file.name != CONFIG]
                for entry in (*part.iterdir(), part, directory):
                    sync(entry)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
            (part / CONFIG).replace(directory / CONFIG)
            sync(directory)
            with suppress(OSError):  # the model is there
                _move(directory, part, names)
    except BaseException as error:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        if not isinstance(error, OSError):
            raise
        where = f"save({shown(str(directory))})"
        if error.errno in FULL:
            raise ResourceError(f"{where}: no room ({error.strerror}); make some, and save again") from error
        raise RunDirectoryError(f"{where}: {error.strerror}; give a folder that this user may write to") from error


def _require_own(directory: Path) -> None:
    """Raise RunDirectoryError where files that `save` would replace are those of a run or a program, or of somebody
    else."""
    layout = Layout(directory)
    if layout.exists or layout.program.exists():
        raise RunDirectoryError(f"{directory}: holds a run or a program, which this would damage: give another folder")
    config = directory / CONFIG
    try:
        parse(config.read_bytes())
    except FileNotFoundError:
        others = [name for name in NAMES if (directory / name).exists()]
        if others:
            raise RunDirectoryError(
                f"{directory}: {others[0]} there is not of a saved model, and would be replaced: give another folder"
            ) from None
    except RunDirectoryError:
        raise RunDirectoryError(
            f"{config}: not written by run.best.save(…), and would be replaced: give another folder"
        ) from None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Wait for others that save there, on file systems that lock folders."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _move(directory: Path, part: Path, names: list[str]) -> None:
    """Move the new model's files to their places, and remove what is left of models that were there before."""
    for name in names:
        (part / name).replace(directory / name)
    sync(directory)
    for name in set(NAMES) - set(names):
        (directory / name).unlink(missing_ok=True)
    for left in directory.glob(".part-*/"):
        shutil.rmtree(left, ignore_errors=True)
