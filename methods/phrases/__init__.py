"""Drafting by phrases: Ouroboros (arXiv 2402.13720)."""
