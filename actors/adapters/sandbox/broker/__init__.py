"""Workspace mode: which directories can be a workspace, and the broker that carries out a program's changes there."""
