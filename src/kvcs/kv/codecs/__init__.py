"""kvcs kv.codecs."""
