"""How fast every device trains, as a multiple of one that is named.

Two devices are compared where they did the same work: the same model, settings, precision and kind
of time. Of each such pair the ratio of speeds is taken, of a workload the geometric mean of its
settings, of two devices that of their workloads. A time with a fault that changes what was timed is
in no mean.
"""
