"""Stand-ins: the tokens of a small model at the cost of a large one."""

from bench.standin.registry import shapes
from bench.standin.shape import Shape, changes
from bench.standin.widening import Layout, widen

__all__ = ["Layout", "Shape", "changes", "shapes", "widen"]
