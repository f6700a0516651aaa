"""Attention of trie nodes over a committed prefix and their own ancestors: one definition, several backends."""
