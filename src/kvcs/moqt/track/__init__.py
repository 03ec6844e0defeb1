"""Tracks held in memory and served to subscribers, each at its own pace."""
