"""A Kubernetes cluster on this machine, for tests."""
