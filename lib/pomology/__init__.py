"""pomology: how fast does this machine train neural networks, and why?

Importing the package imports no training framework; each package below says what it is for in its first line.
"""

__version__ = "0.1.0"
