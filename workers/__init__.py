"""The hands: processes that run the turns of one role each. Never imports `coordinator`."""
