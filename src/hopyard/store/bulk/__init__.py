"""Bytes by network: States from peer to peer, and to the driver's store."""
