"""What tests and trials of endurance use to bring trouble to real processes."""

from hopyard.testing.proxy import Proxied, Proxy

__all__ = ["Proxied", "Proxy"]
