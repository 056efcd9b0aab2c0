"""Shared by workers and coordinator and not pure: settings, logs, metrics, lifecycle, the embedded server."""
