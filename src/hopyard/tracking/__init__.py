"""Trackers, outside of the run: a *follower*, a process of its own, reads the journal and writes to one tracker."""
