"""Builds models from recipes, trains them over partitions, and predicts with them."""
