"""Keras' global settings."""

from __future__ import annotations

from typing import Any

import keras


def global_settings() -> tuple[Any, ...]:
    """Return Keras' global settings, on which a step depends when it is traced."""
    config = keras.config
    return config.dtype_policy(), config.floatx(), config.epsilon(), config.image_data_format()


def apply_settings(settings: tuple[Any, ...]) -> None:
    """Sets Keras' global settings to a result of `global_settings`."""
    if global_settings() == settings:
        return
    policy, floatx, epsilon, image_format = settings
    keras.config.set_floatx(floatx)
    keras.config.set_epsilon(epsilon)
    keras.config.set_image_data_format(image_format)
    keras.config.set_dtype_policy(policy)
