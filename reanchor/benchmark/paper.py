"""Measurements that the ReAnchor paper's text states, to be shown beside ours.

Only numbers in the text are here; its tables give more. Ablations there: Qwen3-4B, DFlash drafter with B = 16, T = 0.
"""

from __future__ import annotations

SETTING = "Qwen3-4B, DFlash B = 16, H100, T = 0"
TEMPERATURE = 0.0  # of its ablations
# Table 7, average acceptance length over the eight sets
COMPONENTS = {"DFlash": "5.38", "+ shifted blocks": "5.87", "+ token matching": "6.22"}
# Table 6, average acceptance length over GSM8K, HumanEval, MATH and MBPP
ATTACH = {"fixed": "7.24", "random": "7.51–7.56", "longest": "7.51–7.56", "earliest": "7.51–7.56"}
ALIGNMENT = {"shifted only": "45.5–51.2 %", "multiple": "34.7–40.6 %"}  # Table 5
AGREEMENT = {"agreement after rejection": "60–66 %"}  # Table 1
FULL_ROUNDS = {"math500": "16.4 %", "humaneval": "12.7 %"}  # Figure 2
# ReAnchor over DFlash in acceptance length and speed, by temperature: four targets, eight sets
GAIN = {0.0: "+15.2 % / +13.4 %", 1.0: "+11.8 % / +6.9 %"}
