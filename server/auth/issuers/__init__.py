"""Issuers of tokens and certificates: their settings, their keys, and the callers whom they vouch for."""
