"""Whether a run's outputs are what its target says."""

from bench.audit.run_audit import audit_run, with_audit
from bench.audit.text import audit_lines, lossless

__all__ = ["audit_lines", "audit_run", "lossless", "with_audit"]
