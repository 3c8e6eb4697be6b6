"""The one way of timing, for all programs: contests of ways to run a workload."""
