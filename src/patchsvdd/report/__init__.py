"""What a run of inspections leaves on disk: results files, overlays and an HTML report."""
