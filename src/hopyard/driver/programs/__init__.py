"""The driver of a program."""
