"""The user's code: which modules are the user's, their pickle by value, and the digest of what code does."""
