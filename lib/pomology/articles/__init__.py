"""What the articles print."""
