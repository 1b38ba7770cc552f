"""Looking after published rows: range partitions, their archive, publishing once more."""
