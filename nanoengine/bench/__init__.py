"""What `make bench` prints: this machine's read bandwidth, and the engine's decode steps beside it."""
