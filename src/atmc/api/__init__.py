"""The high-level API, `atmc.sample`: what it takes, what it does where nobody says, and what it hands back."""
