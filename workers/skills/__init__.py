"""Skills: folders with a small program that agents call as a tool, each call in a process of its own."""
