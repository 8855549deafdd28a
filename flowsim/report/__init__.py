"""Reports of verdicts: text tables, a LaTeX table, report.html, the ledger, pages for a review, and figures."""
