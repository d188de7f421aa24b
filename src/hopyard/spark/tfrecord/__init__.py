"""DataFrames to TFRecord files, and back."""
