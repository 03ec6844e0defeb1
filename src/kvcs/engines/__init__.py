"""kvcs engines."""
