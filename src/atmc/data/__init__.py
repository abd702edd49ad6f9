"""Named data sets to tensors: find, fetch, verify, decode, batch, augment."""
