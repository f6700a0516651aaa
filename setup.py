"""The packages that ship: pyproject.toml's own search cannot install cli/ as reanchor_cli."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["reanchor", "reanchor.*"]), "reanchor_cli"],
    package_dir={"reanchor_cli": "cli"},
)
