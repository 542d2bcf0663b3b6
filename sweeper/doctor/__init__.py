"""What may be wrong with a machine, its packages, a home, what they reach, and a sweep's file. Opens no data, charges nothing."""
