"""Any workload, run in any ways and timed side by side: ways, contests, tables, pictures."""
