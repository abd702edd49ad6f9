"""Getting data sets: find the files, download them, verify them, bring them into one layout."""
