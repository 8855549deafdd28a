"""What every room uses: argument checks, hosts, files, documents, balls, shared types, and the version."""

VERSION = "0.1.0"
