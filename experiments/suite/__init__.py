"""Any workload, run in any ways, timed side by side: ways, contests, tables, pictures."""
