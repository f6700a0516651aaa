"""Recurrent layers over a tree of nodes: one definition, several forms, and their place inside transformers' models."""
