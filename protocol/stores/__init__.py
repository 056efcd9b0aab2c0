"""The adapters of the contract's ports: the only place that imports redis or opens a state file."""
