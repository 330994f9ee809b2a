"""Running and measuring: pairs, the run loop, the store, statistics, tables."""
