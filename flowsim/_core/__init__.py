"""Code that all other packages of flowsim use: argument checks, hosts, files, documents, ball arithmetic, shared
types and the version.
"""

VERSION = "0.1.0"
