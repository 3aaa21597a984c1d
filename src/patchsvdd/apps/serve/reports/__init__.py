"""Reports that leave the service: CSV, PDF and ZIP of a filter of the history, and the report of a shift."""
