"""Whether a Keras model and a dataset fit, and in which form a model wants what the data has by name."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from hopyard.errors import SpecError
from hopyard.frameworks.keras.checks import Info, arrange, label_fault, misfit, zeros
from hopyard.frameworks.keras.model import Model
from keras_nets import WIDTH, layers

pytestmark = pytest.mark.tensorflow

F32 = "float32"
LABEL: Info = {"targets": ((), "int64")}


def functional(*shapes: tuple[int | None, ...], as_dict: bool = False) -> keras.Model:
    """Inputs `one`, `two`, … of these shapes; the same numbers of outputs, `out_one`, …"""
    names = ("one", "two", "three")[: len(shapes)]
    inputs = [keras.Input(shape, name=name) for name, shape in zip(names, shapes, strict=True)]
    outputs = [layers.Flatten(name=f"out_{tensor.name}")(tensor) for tensor in inputs]
    if as_dict:
        return keras.Model(
            dict(zip(names, inputs, strict=True)), {f"out_{n}": t for n, t in zip(names, outputs, strict=True)}
        )
    return keras.Model(inputs if len(shapes) > 1 else inputs[0], outputs if len(shapes) > 1 else outputs[0])


class Free(keras.Model):
    """Takes what comes."""

    def call(self, x: Any) -> Any:
        return x


def of(**shapes: tuple[int, ...]) -> Info:
    return {name: (shape, F32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (functional((4,)), of(inputs=(4,))),
        (functional((4,)), of(one=(4,))),
        (functional((4,)), of(other=(4,))),
        (functional((None,)), of(inputs=(9,))),
        (functional((None, 3)), of(inputs=(9, 3))),
        (functional((4, 1)), of(inputs=(4,))),
        (functional((4,)), of(inputs=(4, 1))),
        (functional((4,), (2,)), of(one=(4,), two=(2,))),
        (functional((4,), (2,)), of(two=(2,), three=(7,), one=(4,))),
        (functional((4,), (2,), as_dict=True), of(two=(2,), one=(4,))),
        (Free(), of(inputs=(4,))),
        (Free(), of(a=(4,), b=(3,))),
        (keras.Sequential([layers.Dense(2)]), of(inputs=(4,))),
    ],
)
def test_a_model_that_fits(model: keras.Model, inputs: Info) -> None:
    assert misfit(model, inputs, LABEL) == ""


@pytest.mark.parametrize(
    ("model", "inputs", "fault"),
    [
        (
            functional((4,)),
            of(inputs=(5,)),
            "the model's input 'one' takes rows of shape (4,), those of the data have shape (5,): in "
            "recipe(config, ctx) write keras.Input(shape=ctx.inputs['inputs'][0]), or reshape in the model or in the "
            "Dataset's transform",
        ),
        (functional((28, 28, 1)), of(inputs=(784,)), "of shape (28, 28, 1), those of the data have shape (784,)"),
        (functional((None, 3)), of(inputs=(9, 4)), "takes rows of shape (any, 3), those of the data have shape (9, 4)"),
        (functional((4,)), of(inputs=()), "takes rows of shape (4,), those of the data have shape ()"),
        (
            functional((4,), (2,)),
            of(inputs=(6,)),
            "the model has 2 inputs (one, two), the data has one: give the Dataset features as a dict, input name → ",
        ),
        (
            functional((4,), (2,)),
            of(one=(4,), second=(2,)),
            "the model's input 'two' is not in the data, which has 'one', 'second': name each keras.Input as the Data",
        ),
        (functional((4,), (2,)), of(one=(4,), two=(3,)), "the model's input 'two' takes rows of shape (2,), those of"),
        (functional((4,), (2,), as_dict=True), of(one=(3,), two=(2,)), "ctx.inputs['one'][0]"),
    ],
)
def test_a_model_that_does_not_fit(model: keras.Model, inputs: Info, fault: str) -> None:
    assert fault in misfit(model, inputs, LABEL)


def labelled(loss: Any, as_dict: bool = False) -> keras.Model:
    net = functional((4,), (2,), as_dict=as_dict)
    net.compile("sgd", loss)
    return net


BOTH = of(one=(4,), two=(2,))


@pytest.mark.parametrize("as_dict", [False, True], ids=["list", "dict"])
@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (["mse", "mae"], of(out_one=(4,), out_two=(2,))),
        ({"out_one": "mse", "out_two": "mae"}, of(out_one=(4,), out_two=(2,), more=())),
        ({"out_two": "mae"}, of(out_two=(2,))),
        (None, {}),
        ("mse", of(out_one=(4,), out_two=(2,))),
    ],
    ids=["list", "dict", "one", "none", "name"],
)
def test_labels_that_fit(loss: Any, targets: Info, as_dict: bool) -> None:
    assert misfit(labelled(loss, as_dict), BOTH, targets) == ""


@pytest.mark.parametrize(
    ("loss", "as_dict"), [({"out_one": "mse", "out_two": None}, True), (["mse", None], False)], ids=["dict", "list"]
)
def test_an_output_without_a_loss_needs_no_label(loss: Any, as_dict: bool) -> None:
    assert misfit(labelled(loss, as_dict), BOTH, of(out_one=(4,))) == ""


@pytest.mark.parametrize(
    ("loss", "targets", "fault"),
    [
        (
            "mse",
            {},
            "the data has no label, but the model's loss needs one for 'out_one', 'out_two': name it, Dataset(",
        ),
        (
            ["mse", "mae"],
            of(out_one=(4,)),
            "the model's output 'out_two' has no label in the data, which has 'out_one': ",
        ),
        ({"out_two": "mse"}, of(out_one=(4,)), "the model's output 'out_two' has no label in the data"),
        (["mse", "mae"], of(targets=(4,)), "'out_one' has no label in the data, which has one label without a name: "),
        (
            "mse",
            of(one=(4,), two=(4,)),
            "the model's output 'out_one' has no label in the data, which has 'one', 'two'",
        ),
    ],
    ids=["none", "list", "dict", "single", "one loss"],
)
def test_labels_that_do_not_fit(loss: Any, targets: Info, fault: str) -> None:
    assert fault in misfit(labelled(loss), BOTH, targets)


def test_a_single_output_needs_a_label_of_any_name() -> None:
    net = functional((4,))
    net.compile("sgd", "mse")
    assert misfit(net, of(inputs=(4,)), of(any=(4,))) == ""
    assert misfit(net, of(inputs=(4,)), {}) == (
        "the data has no label, but the model's loss needs one: name it, Dataset(…, label=…)"
    )


# ------------------------------------------------------------------------------------------------ forms


A, B, C = (np.full((3, n), n, np.float32) for n in (1, 2, 3))


def test_labels_without_names_stay_as_they_are() -> None:
    for model in (functional((1,)), functional((1,), (2,)), Free()):
        x, y = arrange(model, A, B)
        assert x is A
        assert y is B
        assert arrange(model, A, None)[1] is None


def test_names_are_put_in_the_form_of_the_model() -> None:
    given = {"three": C, "two": B, "one": A}
    x, _ = arrange(functional((1,), (2,)), given, None)
    assert isinstance(x, tuple)
    assert x[0] is A
    assert x[1] is B
    x, _ = arrange(functional((1,), (2,), as_dict=True), given, None)
    assert list(x) == ["one", "two"]
    assert arrange(functional((1,)), given, None)[0] is A
    assert arrange(functional((1,)), {"any": B}, None)[0] is B
    assert arrange(Free(), given, None)[0] is given


def test_labels_go_by_the_names_of_the_outputs() -> None:
    given = {"out_two": B, "out_one": A}
    _, y = arrange(functional((1,), (2,)), A, given)
    assert y[0] is A
    assert y[1] is B
    _, y = arrange(functional((1,), (2,), as_dict=True), A, given)
    assert list(y) == ["out_one", "out_two"]
    assert arrange(functional((1,)), A, {"label": B})[1] is B
    assert arrange(functional((1,), (2,)), A, {"one": A})[1] == {"one": A}
    assert arrange(Free(), A, given)[1] is given


def test_a_sequential_model_takes_a_single_input_by_any_name() -> None:
    net = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(1)])
    x, y = arrange(net, {"x": A}, {"y": B})
    assert x is A
    assert y is B


def trained(net: keras.Model, x: Any, y: Any, **compiled: Any) -> Model:
    from keras_nets import feed_of

    net.compile("sgd", **compiled)
    trainable = Model(net)
    trainable.set_schema(*({k: (v.shape[1:], str(v.dtype)) for k, v in part.items()} for part in (x, y)))
    trainable.train_partition(feed_of(x, y))
    trainable.evaluate_partition(feed_of(x, y))
    return trainable


def test_losses_by_name_for_outputs_in_a_list() -> None:
    net = functional((1,), (2,))
    inner = keras.Model(
        net.inputs, [layers.Dense(1, name="p")(net.outputs[0]), layers.Dense(2, name="q")(net.outputs[1])]
    )
    trained(inner, {"two": B, "one": A}, {"q": B, "p": A}, loss={"p": "mse", "q": "mae"}, metrics={"q": ["mse"]})


def test_zeros_are_two_rows_in_the_form_of_the_data() -> None:
    one = zeros({"inputs": ((3, 2), "uint8")}, "inputs")
    assert (one.shape, one.dtype) == ((2, 3, 2), np.uint8)
    two = zeros({"a": ((), "int64"), "inputs": ((3,), F32)}, "inputs")
    assert {name: (array.shape, str(array.dtype)) for name, array in two.items()} == {
        "a": ((2,), "int64"),
        "inputs": ((2, 3), F32),
    }
    assert zeros({}, "targets") is None


def test_a_mismatch_is_reported_before_anything_is_built() -> None:
    net = functional((4,), (2,))
    net.compile("sgd", "mse")
    trainable = Model(net)
    with pytest.raises(SpecError, match="the model has 2 inputs"):
        trainable.set_schema(of(inputs=(4,)), of(targets=()))
    assert not net.optimizer.built


# ------------------------------------------------------------------------------------------------ labels


def classes(count: int | None, loss: Any) -> keras.Model:
    here = keras.Input((count,))
    net = keras.Model(here, layers.Activation("softmax")(here))
    net.compile("sgd", loss)
    return net


NAME = "sparse_categorical_crossentropy"
SPARSE = keras.losses.SparseCategoricalCrossentropy


@pytest.mark.parametrize(
    "loss",
    [
        NAME,
        SPARSE(),
        SPARSE(from_logits=True),
        keras.losses.sparse_categorical_crossentropy,
        SPARSE(name="mine"),
        "SparseCategoricalCrossentropy",
        [NAME],
        {"activation": NAME},
    ],
    ids=["name", "object", "logits", "function", "named", "class", "list", "dict"],
)
def test_class_numbers_out_of_range(loss: Any) -> None:
    model = classes(3, loss)
    assert label_fault(model, 0, 2) == ""
    assert label_fault(model, 1, 1) == ""
    assert label_fault(model, 0, 3) == (
        "labels go from 0 to 3, but the model has 3 outputs, for labels 0 to 2: label 3 has none; give the model 4 "
        "outputs, or number the labels from 0"
    )
    assert "label -1 has none" in label_fault(model, -1, 2)
    assert label_fault(model, 0, 1.5) == (
        "labels go from 0 to 1.5: sparse categorical cross-entropy takes whole numbers from 0"
    )
    assert Model(model).label_fault(None, 0, 12).startswith("labels go from 0 to 12")  # type: ignore[arg-type]


def test_a_class_that_is_ignored_may_be_out_of_range() -> None:
    model = classes(3, SPARSE(ignore_class=-1))
    assert label_fault(model, -1, 2) == ""
    assert label_fault(classes(3, SPARSE(ignore_class=255)), 0, 255) == ""
    assert "label 3 has none" in label_fault(model, -1, 3)


def test_other_losses() -> None:
    binary = ("binary_crossentropy", keras.losses.BinaryCrossentropy(label_smoothing=0.1))
    for loss in (*binary, "bce", "BinaryCrossentropy", "binary_focal_crossentropy"):
        assert label_fault(classes(1, loss), 0, 1) == ""
        assert label_fault(classes(1, loss), -1, 1) == "labels go from -1 to 1, binary cross-entropy takes 0 to 1"
        assert label_fault(classes(1, loss), 0, 2.5) == "labels go from 0 to 2.5, binary cross-entropy takes 0 to 1"
    for loss in ("mse", None, lambda y, p: p, {"activation": "mse"}):
        assert label_fault(classes(1, loss), -100, 100) == ""


def test_losses_that_allow_no_check() -> None:
    several = functional((4,), (2,))
    several.compile("sgd", NAME)
    assert label_fault(several, 0, 99) == ""
    free = Free()
    free.compile("sgd", NAME)
    assert label_fault(free, 0, 99) == ""
    assert label_fault(classes(None, NAME), 0, 99) == ""


def test_a_label_below_zero_where_the_number_of_outputs_is_not_known() -> None:
    assert label_fault(classes(None, NAME), -1, 2) == "labels go from -1 to 2: class numbers begin at 0"
