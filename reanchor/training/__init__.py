"""Training of block drafters on a frozen target's own responses; nothing in the engine imports it."""
