"""``python -m bedrock.cli`` is the program `bedrock`."""

from bedrock.cli import main

main()
