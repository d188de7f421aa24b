"""The user's code: whose a module is, its pickle by value, and the digest of what it does."""
