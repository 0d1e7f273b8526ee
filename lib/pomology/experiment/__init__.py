"""What a notebook talks to."""
