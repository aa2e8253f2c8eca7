"""Runs the program `bedrock` for ``python -m bedrock.cli``."""

from bedrock.cli import main

main()
