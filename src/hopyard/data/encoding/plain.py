"""The encoding of a data set as plain values, for programs in any language that encode rows for an exported model."""

from __future__ import annotations

from typing import Any

from hopyard.data.manifest import Column, Field, Manifest

VERSION = 1
"""Version of what `plain` returns."""


def plain(manifest: Manifest, transform: bool) -> dict[str, Any]:
    """Return what turns raw rows into a model's inputs. The keys are those that docs/selecting.md describes.

    Args:
        manifest: of the training data.
        transform: whether that data went through a transform before, which is code.
    """
    fields = {role: [field for field in manifest.fields if field.role == role] for role in ("inputs", "targets")}
    return {
        "format": VERSION,
        "transform": transform,
        "inputs": {field.name: _input(field, manifest) for field in fields["inputs"]},
        "labels": {field.name: _labels(field, manifest) for field in fields["targets"]},
    }


def _input(field: Field, manifest: Manifest) -> dict[str, Any]:
    info = manifest.inputs[field.name]
    columns = [_column(column, manifest) for column in field.columns]
    return {"shape": info.shape, "dtype": info.dtype, "columns": columns}


def _column(column: Column, manifest: Manifest) -> dict[str, Any]:
    steps: dict[str, Any] = {"fill": manifest.fills[column.name]} if column.impute else {}
    if column.encode:
        steps |= {"encode": column.encode, "values": manifest.vocabularies[column.name], "other": column.other}
    if column.scaled:
        scale = manifest.standardize[column.name]
        steps |= {"means": scale.means, "deviations": scale.deviations}
    arrow, _, dtype = column.type.rpartition(":")
    return {"name": column.name, "type": arrow if column.encode else dtype, "shape": column.shape, **steps}


def _labels(field: Field, manifest: Manifest) -> list[Any] | None:
    """Return the values of an encoded label by their numbers; None where it was a number."""
    encoded = len(field.columns) == 1 and field.columns[0].encode
    return manifest.vocabularies[field.columns[0].name] if encoded else None
