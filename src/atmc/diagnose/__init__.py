"""Is the chain healthy? R-hat, effective sample size, temperatures, mixing, and what to change (`atmc doctor`)."""
