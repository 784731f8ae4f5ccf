"""Benchmarks that strandline could lose: `make bench`."""
