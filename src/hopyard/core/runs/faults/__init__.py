"""What follows from a fault: `rules` say whether a trial ends or waits, `retries` gives its unit out again."""
