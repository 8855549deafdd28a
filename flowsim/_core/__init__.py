"""Code that all rooms use: argument checks, hosts, files, documents, balls, shared types and the version."""

VERSION = "0.1.0"
