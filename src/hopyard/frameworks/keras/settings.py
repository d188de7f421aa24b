"""Keras' global settings."""

from __future__ import annotations

from typing import Any

import keras


def global_settings() -> tuple[Any, ...]:
    """Keras' global settings, on which a step depends when it is traced."""
    config = keras.config
    return config.dtype_policy(), config.floatx(), config.epsilon(), config.image_data_format()


def apply_settings(wanted: tuple[Any, ...]) -> None:
    """Set Keras' global settings to what `global_settings` gave."""
    if global_settings() == wanted:
        return
    policy, floatx, epsilon, order = wanted
    keras.config.set_floatx(floatx)
    keras.config.set_epsilon(epsilon)
    keras.config.set_image_data_format(order)
    keras.config.set_dtype_policy(policy)
