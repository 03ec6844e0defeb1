"""kvcs kv."""
