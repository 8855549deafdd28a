"""Code that all packages of flowsim use: argument checks, files, ball arithmetic, shared types, the version."""

VERSION = "0.1.0"
