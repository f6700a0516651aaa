"""Block drafters of the DFlash family: from a checkpoint to proposals."""
