"""What several studies measure."""
