"""Patches that are applied to frameworks when they are imported."""
