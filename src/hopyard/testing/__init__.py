"""Tools with which tests and endurance runs bring trouble to real processes."""

from hopyard.testing.proxy import Proxied, Proxy

__all__ = ["Proxied", "Proxy"]
