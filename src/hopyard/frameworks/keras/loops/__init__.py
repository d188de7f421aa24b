"""Loops over rows with Keras, one for each of its backends."""
