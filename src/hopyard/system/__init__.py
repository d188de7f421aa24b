"""What the operating system tells; the standard library only."""
