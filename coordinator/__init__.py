"""The head: code only, never calls a model. Never imports `workers`."""
