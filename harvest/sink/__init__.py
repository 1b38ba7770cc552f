"""Where rows are published."""
