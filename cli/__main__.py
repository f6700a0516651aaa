"""`python -m reanchor_cli`, the same as the command."""

from __future__ import annotations

from .main import main

main(prog_name="reanchor")
