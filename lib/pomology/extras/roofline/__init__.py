"""Where each experiment of a run lies under this machine's roofs.

The roofline model (Williams, Waterman and Patterson 2009, "Roofline: an insightful visual
performance model for multicore architectures", Communications of the ACM 52 (4)): a device reaches
at most the lower of two roofs, its best rate of operations, and its bandwidth times the operations
that are done for a byte.
"""
