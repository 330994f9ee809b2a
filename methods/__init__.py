"""Everything that turns tokens into tokens: engine, drafters, draft-length policies, verification, the decode loop."""

from methods.decode import Decoded, Decoder, Step
from methods.engine import Engine
from methods.errors import MethodError
from methods.registry import METHODS, Method, get_method, parse_assignments
from methods.sampling import Sampling
from methods.stopping import StopRule

__all__ = [
    "METHODS",
    "Decoded",
    "Decoder",
    "Engine",
    "Method",
    "MethodError",
    "Sampling",
    "Step",
    "StopRule",
    "get_method",
    "parse_assignments",
]
