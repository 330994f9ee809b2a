"""Pre-verification: a small trained layer that reads a draft's hidden states and estimates what the target will accept."""

from methods.preverifier.checkpoint import load_layer, read_about, save_layer
from methods.preverifier.estimator import Estimator
from methods.preverifier.layer import LayerConfig, PreVerifier, block_causal_mask

__all__ = ["Estimator", "LayerConfig", "PreVerifier", "block_causal_mask", "load_layer", "read_about", "save_layer"]
