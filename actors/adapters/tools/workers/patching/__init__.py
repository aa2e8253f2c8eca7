"""Parts of the patch worker."""
