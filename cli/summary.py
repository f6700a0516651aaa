"""Figures of one run as a table for people and as an object for machines."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from reanchor.loading import Pair

from .decode_run import DecodeRun

STAGES = ("draft", "assemble", "verify", "commit", "other")


def setting(pair: Pair) -> dict[str, str]:
    """Where the target runs."""
    model = pair.target
    return {
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
    }


def figures(run: DecodeRun) -> dict[str, str]:
    """The rows of the summary."""
    stats = run.stats.to_dict(rounds=False)
    return {
        "tokens": f"{stats['tokens']}  ({run.finish})",
        "acceptance length τ": number(stats["tau"]),
        "drafts accepted per round": number(stats["drafts_accepted_per_round"]),
        "tokens from shifted blocks": percent(stats["shifted_share"]),
        "rounds": str(stats["rounds"]),
        "nodes verified per round": number(stats["nodes_per_round"], 1),
        "time to first token": f"{stats['time_to_first_token'] * 1000:.0f} ms",
        "tokens per second": number(stats["tokens_per_second"], 1),
        "time split": split(stats["stage_seconds"]),
    }


SHORT = ("tokens", "acceptance length τ", "time to first token", "tokens per second")


def summary(run: DecodeRun, pair: Pair, whole: bool = True) -> Table:
    table = Table(
        title=f"reanchor generate, method {run.config.method}", show_header=False, title_justify="left"
    )
    rows = {**figures(run), **setting(pair), **forward_rows(run), **attention(run)}
    for name, value in rows.items():
        if whole or name in SHORT:
            table.add_row(name, value)
    if not whole:
        table.caption, table.caption_justify = "--verbose shows all", "left"
    return table


def attention(run: DecodeRun) -> dict[str, str]:
    """The backends that did the work, then a row for each that declined."""
    declined = {f"  {name} declined": "; ".join(why) for name, why in run.attention["declined"].items()}
    return {"attention": ", ".join(run.attention["used"]) or "–", **declined}


def forward_rows(run: DecodeRun) -> dict[str, str]:
    """Whose forward pass the target's was, and a row with the reason where the fused one declined."""
    why = run.forward["declined"]
    used = f"{run.forward['used']}{', matrices packed' if run.forward.get('packed') else ''}"
    rows = {"forward pass": used, **({"  fused declined": why} if why else {})}
    return {**rows, **graphs(run.forward["graphs"])} if "graphs" in run.forward else rows


def graphs(report: dict[str, Any]) -> dict[str, str]:
    """Rounds that were one call, the others by reason, and what captures took."""
    rows = {"rounds in one call": f"{report['whole_rounds']} ({report['run_again']} run again)"}
    rows.update({f"  {count} on the host": reason for reason, count in report["host_rounds"].items()})
    if report.get("captured"):
        rows["  graphs"] = f"{len(report['captured'])}, {report['bytes'] / 2**20:.0f} MiB"
    if report.get("refused"):
        rows["  not captured"] = report["refused"]
    return rows


def split(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    return ", ".join(f"{stage} {percent(seconds[stage] / total if total else None)}" for stage in STAGES)


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def as_object(run: DecodeRun, pair: Pair, names: dict[str, Any]) -> dict[str, Any]:
    """What --json prints."""
    import reanchor

    return {"reanchor": reanchor.__version__, **names, **setting(pair), **run.to_dict()}
