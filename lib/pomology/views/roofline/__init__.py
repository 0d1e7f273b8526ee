"""The roofline of a run: each experiment's FLOP/s compared with this machine's roofs.

The roofline model (Williams, Waterman and Patterson 2009, "Roofline: an insightful visual
performance model for multicore architectures", Communications of the ACM 52 (4)): a device reaches
at most the lower of two roofs, its peak FLOP/s, and its memory bandwidth times the arithmetic
intensity (operations per byte).
"""
