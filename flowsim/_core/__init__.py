"""What every room uses: argument checks, hosts, files, documents, balls, shared types."""
