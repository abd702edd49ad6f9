"""What a person sees: the page, its plots and its tables, made from run directories."""
