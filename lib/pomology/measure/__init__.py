"""Timing of training steps and function calls, with confidence intervals."""
