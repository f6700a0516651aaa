"""A fused forward pass: a transformer as plain functions over an HF module's weights, few large operations a layer."""
