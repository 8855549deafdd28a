"""The version of flowsim, which every result carries."""

VERSION = "0.1.0"
