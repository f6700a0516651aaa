"""Rounds drawn: where each committed token came from, and the tree of one round."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text
from rich.tree import Tree as Drawing

from reanchor import Round
from reanchor.core import BASELINE, RECALL, ROOT, TEXT, VERIFIER_PATH, Tree

STYLES = {
    "bonus": "yellow",
    "baseline": "green",
    "shifted": "magenta",
    "verifier path": "cyan",
    "recall": "blue",
    "text": "bright_black",
}


def source(origin: int) -> str:
    """The name of an origin of a node or a committed token."""
    names = {
        ROOT: "bonus",
        BASELINE: "baseline",
        VERIFIER_PATH: "verifier path",
        RECALL: "recall",
        TEXT: "text",
    }
    return names.get(origin, "shifted")


def mark(origin: int) -> str:
    """An origin in a character or two, for terminals without colour."""
    marks = {ROOT: "+", BASELINE: "b", VERIFIER_PATH: "v", RECALL: "r", TEXT: "t"}
    return marks.get(origin, f"s{origin}")


def legend() -> Text:
    line = Text("b baseline block", STYLES["baseline"])
    line.append("   s2 shifted block at offset 2", STYLES["shifted"])
    line.append("   v verifier path", STYLES["verifier path"])
    line.append("   r what the target said before", STYLES["recall"])
    line.append("   t what followed in the text", STYLES["text"])
    return line.append("   + bonus, the target's own", STYLES["bonus"])


def token_text(tokenizer: Any, token: int) -> str:
    """A token as it can be read in a line."""
    return repr(tokenizer.decode([token]))


def rounds_table(rounds: list[Round], tokenizer: Any) -> Table:
    """A row a round, the prefill left out."""
    table = Table(title="rounds", title_justify="left")
    for name in ("round", "blocks", "nodes", "+tokens"):
        table.add_column(name, justify="right")
    table.add_column("from")
    table.add_column("committed")
    for number, round_ in enumerate(rounds[1:], 1):
        line = Text(" ").join(
            Text(token_text(tokenizer, token), STYLES[source(origin)])
            for token, origin in zip(round_.tokens, round_.origins, strict=True)
        )
        marks = " ".join(mark(origin) for origin in round_.origins)
        counts = (number, round_.drafted, len(round_.tree), len(round_.tokens))
        table.add_row(*map(str, counts), marks, line)
    return table


def draw_tree(round_: Round, number: int, tokenizer: Any) -> Drawing:
    """The tree of one round: what was verified, what of it was accepted, and what the target said instead."""
    tree, path = round_.tree, set(round_.result.path)
    drawings = [Drawing(Text(f"round {number}: anchor {token_text(tokenizer, tree.tokens[0])}", "bold"))]
    for node in range(1, len(tree)):
        drawings.append(drawings[tree.parents[node]].add(label(tree, node, node in path, tokenizer)))
    drawings[round_.result.path[-1]].add(
        Text(f"→ {token_text(tokenizer, round_.tokens[-1])}", STYLES[source(round_.origins[-1])])
    )
    return drawings[0]


def label(tree: Tree, node: int, accepted: bool, tokenizer: Any) -> Text:
    origin = tree.origins[node]
    text = Text(token_text(tokenizer, tree.tokens[node]), STYLES[source(origin)])
    text.append(f"  {mark(origin)}", "dim")
    if accepted:
        text.append(" ✓ accepted", "bold")
    return text


def chosen_round(rounds: list[Round], number: int) -> Round:
    """Round `number`, counted from 1; ValueError when there is no such round."""
    if not 1 <= number < len(rounds):
        raise ValueError(f"--show-round {number} isn't there: this decode had rounds 1 to {len(rounds) - 1}")
    return rounds[number]
