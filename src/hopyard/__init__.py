"""Deep learning on the cluster people already have."""
