"""What a run of inspections leaves on disk: results files, overlay pictures and a report."""
