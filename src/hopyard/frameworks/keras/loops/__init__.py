"""Going over rows with Keras, on each of its backends."""
