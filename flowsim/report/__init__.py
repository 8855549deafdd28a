"""Verdicts written down: tables, documents, the ledger, a page, pictures."""
