"""Looking after published rows: range partitions, and their archive before they are dropped.

The databases implement `partitions.PartitionStore`; the process (`harvest.runtime`) carries out.
"""
