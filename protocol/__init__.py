"""The contract of a fleet: records, gates, task states, keys and ports. Pure: no I/O, no clock, no environment."""
