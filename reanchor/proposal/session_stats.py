"""What the decodes of one pair have taught, where the next one begins: plain numbers, shared by all of them.

Prompts are short and a decode's first rounds know nothing of it, so what rounds take and what drafts are worth is not
learnt anew in each. It can change how much a round proposes, never what the target says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reanchor.proposal.mixture import SourceMixture

PROBE_INTERVAL = 8  # rounds until a draft that doesn't pay is tried again
PRIOR_DRAFT_GAIN = {
    "baseline": 1.0,
    "shifted": 0.05,
}  # tokens a round that a draft adds, its own seconds apart
PRIOR_CALIBRATION = {"lookup": 0.7, "draft": 0.9}  # part of the tokens predicted beyond the bonus that came
PRIOR_WEIGHT = 8.0  # predicted tokens that this is worth


@dataclass
class SessionStats:
    """Of greedy decoding or of sampling; what a draft is worth differs between the two."""

    # corrections of the curves, and seconds of making a tree and learning from it
    costs: dict[str, float] = field(default_factory=lambda: {"verify": 1.0, "draft": 1.0, "overhead": 0.0})
    worth: dict[str, float] = field(default_factory=lambda: dict(PRIOR_DRAFT_GAIN))
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PRIOR_DRAFT_GAIN, 0))  # drafts
    predicted: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(PRIOR_CALIBRATION, PRIOR_WEIGHT)
    )
    came: dict[str, float] = field(
        default_factory=lambda: {kind: PRIOR_WEIGHT * kept for kind, kept in PRIOR_CALIBRATION.items()}
    )
    rounds_since_draft: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(PRIOR_DRAFT_GAIN, 0)
    )  # rounds since a draft
    probe_interval: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(PRIOR_DRAFT_GAIN, PROBE_INTERVAL)
    )  # till a probe

    prices: SourceMixture | None = None  # the first decode brings them

    def trust(self, kind: str) -> float:
        """The part of what is predicted that comes."""
        return self.came[kind] / self.predicted[kind]
