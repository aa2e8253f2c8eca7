"""Authentication by JSON Web Tokens and client certificates: issuers, their settings and their keys."""
