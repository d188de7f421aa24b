"""What frameworks are told as they are imported."""
