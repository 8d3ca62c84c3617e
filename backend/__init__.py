"""Ahead of time: the partitioner, the graph passes, the lowering."""
