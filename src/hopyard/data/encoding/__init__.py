"""From columns of a table to the arrays that a model sees."""
