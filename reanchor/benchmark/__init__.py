"""Measurement: methods side by side on the same prompts, gated on equality; it prints nothing."""
