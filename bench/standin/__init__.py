"""Stand-ins: the tokens of a small model at the cost of a large one."""

from bench.standin.shape import Shape
from bench.standin.widening import Layout, widen

__all__ = ["Layout", "Shape", "widen"]
