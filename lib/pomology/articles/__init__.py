"""The published numbers and claims as data, and the verdicts on the claims."""
