"""Description of this computer, and its state during a measurement."""
