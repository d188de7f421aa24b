"""Feeds: rows into the processes of a program, and answers back; both ends of one protocol."""
