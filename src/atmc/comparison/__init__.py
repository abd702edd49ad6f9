"""Is sampling worth it on these data? The usual baselines and ATMC at equal compute: `atmc.compare`, `atmc compare`."""
