"""Losses that are known by prompts that are drawn once, and how far to trust their means."""
