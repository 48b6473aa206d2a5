"""Published figures, one CSV file a paper."""
