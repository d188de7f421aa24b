"""The pure core: what happens next is decided here, without a clock, I/O, threads or global randomness."""
