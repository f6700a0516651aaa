"""What the decodes of one pair have taught, where the next one begins: plain numbers, shared by all of them.

Prompts are short and a decode's first rounds know nothing of it, so what rounds take and what drafts are worth is not
learnt anew in each. It can change how much a round proposes, never what the target says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reanchor.proposal.prices import Prices

SOON = 8  # rounds until a draft that doesn't pay is tried again
PRIOR_WORTH = {"baseline": 1.0, "shifted": 0.05}  # tokens a round that a draft adds, its own seconds apart
PRIOR_KEPT = {"known": 0.7, "drafted": 0.9}  # part of the tokens promised beyond the bonus that came
PRIOR_WEIGHT = 8.0  # promised tokens that this is worth


@dataclass
class Experience:
    """Of greedy decoding or of sampling; what a draft is worth differs between the two."""

    # corrections of the curves, and seconds of making a trie and learning from it
    costs: dict[str, float] = field(default_factory=lambda: {"verify": 1.0, "draft": 1.0, "overhead": 0.0})
    worth: dict[str, float] = field(default_factory=lambda: dict(PRIOR_WORTH))
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PRIOR_WORTH, 0))  # drafts
    promised: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PRIOR_KEPT, PRIOR_WEIGHT))
    came: dict[str, float] = field(
        default_factory=lambda: {kind: PRIOR_WEIGHT * kept for kind, kept in PRIOR_KEPT.items()}
    )
    unseen: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(PRIOR_WORTH, 0)
    )  # rounds since a draft
    patience: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PRIOR_WORTH, SOON))  # till a probe

    prices: Prices | None = None  # the first decode brings them

    def trust(self, kind: str) -> float:
        """The part of what is promised that comes."""
        return self.came[kind] / self.promised[kind]
