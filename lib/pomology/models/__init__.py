"""Models that notebooks share, their FLOP and memory counts, and verification of GPU steps."""
