"""The reanchor command, installed as reanchor_cli."""
