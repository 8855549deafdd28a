"""Losses that are averages over sampled prompts, and confidence intervals for them."""
