"""What a row is: its hash, its name, its place in an order."""
