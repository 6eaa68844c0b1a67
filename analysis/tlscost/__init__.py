"""tlscost: from records of hardware counters to what a TLS transaction costs."""
