"""Supervisors on hosts of one's own: the engine, its logins by ssh, and which host reaches which."""
