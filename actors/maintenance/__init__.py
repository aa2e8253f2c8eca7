"""Work on what is stored: retention, verification, replay."""
