"""What the operating system offers: files, locks, processes, the network. Uses the standard library only."""
