"""Doubt about a drafter: the target takes next to nothing of what it proposes. It knows figures only."""

from __future__ import annotations

import warnings

from reanchor.stats import Stats

ROUNDS, LEAST = 32, 0.05
CAUSES = (
    "the drafter was trained for another target or another revision of it",
    "thinking mode differs from its training text (--thinking, --no-thinking)",
    "the chat template or the language of the prompt is far from its training text",
    "target or drafter is quantised",
    "the context is longer than the drafter was trained for",
)


class AcceptanceWatch:
    """Warns once, after the first rounds of a decode, when fewer than one draft in twenty was accepted."""

    def __init__(self, proposals: int) -> None:
        self.proposals, self.warned = proposals, False

    def see(self, stats: Stats) -> None:
        if self.warned or len(stats.rounds) != ROUNDS:
            return
        drafted = [each for each in stats.rounds if each.blocks]
        proposed = sum(min(each.depth, self.proposals) for each in drafted)
        accepted = sum(min(each.accepted, self.proposals) for each in drafted)
        if proposed == 0 or accepted >= LEAST * proposed:
            return
        self.warned = True
        warnings.warn(
            f"only {accepted} of {proposed} drafts were accepted in the first {ROUNDS} rounds; the usual causes: "
            f"{'; '.join(CAUSES)}. The output is right all the same, only slow",
            stacklevel=2,
        )
