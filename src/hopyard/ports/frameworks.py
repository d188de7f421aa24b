"""What Hopyard asks of a framework: its settings in a process, and how its models are saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from hopyard.ports.states import Tree


@runtime_checkable
class FrameworkModel(Protocol):
    """A Trainable that holds a model of a framework, which `frameworks.model_file` extracts, saves and loads."""

    framework: str


@dataclass(frozen=True, slots=True)
class ModelFile:
    """How models of one framework are written to a file that others can read, and what of a State such a file lacks.

    Attributes:
        name: the name of the file, for example "model.safetensors".
        parts: the keys of the State on which outputs, loss and metrics depend.
        model: `model(trainable)` returns the framework's own model in a Trainable.
        save: `save(trainable, path)` writes the file.
        rest: `rest(trainable, other, content)` returns what these parts of the State have and a file with this content
            lacks, as tensors or arrays; empty: nothing. `other`: another build, to try what the file restores.
        load: `load(trainable, content, rest)` copies a file's content, and the rest, into a Trainable of the same
            build.
        without_base: the same for files without the frozen parameters; None: there are none such.
    """

    name: str
    parts: tuple[str, ...]
    model: Callable[[Any], Any]
    save: Callable[[Any, Path], None]
    rest: Callable[[Any, Any, bytes], Tree]
    load: Callable[[Any, bytes, Tree], None]
    without_base: ModelFile | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """How models of one framework are written in a format that runs without their code.

    Attributes:
        write: `write(trainable, path, inputs)` writes the file or folder for any number of rows; it is not there yet.
            `inputs`: two rows of zeros as `predict` gets rows, an array or a dict of arrays.
        needs: the modules of other packages that it imports.
    """

    write: Callable[[Any, Path, Any], None]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Runtime:
    """The settings that one framework needs in the process that it trains in. Each has a conformance test.

    Attributes:
        versions: returns the versions and settings that digests may depend on.
        prepare: imports in advance what recipes use.
        late: modules that the framework itself imports in a first step.
        warm: does what the framework puts off until a first step.
        install: `install(exact, threads)` sets threads (0: unchanged) and determinism of the process for a run.
        reseed: `reseed(seed)`, before each recipe and each partition: seeds all generators of the process.
        before_recipe: `before_recipe(seed, named)`; `named`: the recipe's code names the framework.
        after_recipe: called as soon as the recipe has returned.
        adopt: returns the result of a recipe, as a Trainable if it is a model of the framework.
        parameters: returns what training changes in a net of the framework, as objects that live as long as its memory;
            of anything else, nothing.
        snapshot: returns the settings of the process that a run changes.
        restore: `restore(snapshot)` puts them back; None: the framework was imported since, so to its defaults.
        release: frees memory of devices that holds nothing.
        file: how models are saved; None: they cannot be.
        exports: returns the formats that models are exported in, by the end of a path; "" is that of a folder.
    """

    versions: Callable[[], dict[str, Any]]
    prepare: Callable[[], None] = lambda: None
    late: tuple[str, ...] = ()
    warm: Callable[[], None] = lambda: None
    install: Callable[[bool | Literal["warn"], int], None] = lambda exact, threads: None
    reseed: Callable[[int], None] = lambda seed: None
    before_recipe: Callable[[int, bool], None] = lambda seed, named: None
    after_recipe: Callable[[], None] = lambda: None
    adopt: Callable[[Any], Any] = lambda value: value
    parameters: Callable[[Any], list[Any]] = lambda value: []
    snapshot: Callable[[], Any] = lambda: None
    restore: Callable[[Any], None] = lambda snapshot: None
    release: Callable[[], None] = lambda: None
    file: ModelFile | None = None
    exports: Callable[[], Mapping[str, Export]] = dict
