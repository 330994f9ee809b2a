"""Draft-length policies, one file each."""

from methods.policies.base import LengthPolicy

__all__ = ["LengthPolicy"]
