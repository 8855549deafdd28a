"""Losses that are averages over drawn prompts, and their confidence intervals."""
