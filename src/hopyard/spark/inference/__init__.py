"""Models and functions over the rows of a DataFrame."""
