"""Parts of the program `benchmark.py`: contenders, fresh processes, bars, pictures."""
