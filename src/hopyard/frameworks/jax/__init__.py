"""JAX's process settings."""
