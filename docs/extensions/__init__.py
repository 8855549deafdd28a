"""What the site generates from the package at build time."""
