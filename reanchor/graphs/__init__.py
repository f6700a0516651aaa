"""Whole rounds on the device: fixed shapes and one read a round, made for CUDA graphs, run as they are elsewhere."""
