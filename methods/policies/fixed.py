"""Fixed draft length (Leviathan et al. 2023; Chen et al. 2023)."""

from dataclasses import dataclass

from methods.policies.base import LengthPolicy
from methods.settings import setting


@dataclass(frozen=True)
class FixedSettings:
    gamma: int = setting(5, "draft tokens per step", low=1, high=256)


FIXED_SEARCH = {"gamma": tuple(range(1, 17))}


class FixedLength(LengthPolicy):
    """Drafts gamma tokens as one block, so it never needs a value on the host."""

    def __init__(self, settings: FixedSettings):
        self.block = self.gamma_max = settings.gamma
