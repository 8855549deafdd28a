"""Reports of verdicts: tables, documents, the ledger, a page, pictures."""
