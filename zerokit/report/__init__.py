"""Reports of runs: the schema of ``report.json``, predicted beside measured, tables, pages and charts."""
