"""Supervisors in pods of a Kubernetes cluster: the engine, its Jobs, and what the API says about them."""
