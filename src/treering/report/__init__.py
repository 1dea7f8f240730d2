"""What was measured, beside the paper: tables, figures and one HTML page."""
