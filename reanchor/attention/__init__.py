"""Attention over a committed prefix and a short tail behind it: one definition, several backends."""
