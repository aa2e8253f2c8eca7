"""Authentication by JSON Web Tokens and by client certificates: issuers, their settings and their keys."""
