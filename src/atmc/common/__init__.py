"""Small helpers that every folder may use: errors, atomic files, spelling suggestions, plain-text formatting."""
