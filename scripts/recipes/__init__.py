"""Models that the demo, the benchmarks and the tests share, one family a file."""
