"""TensorFlow's process settings."""
