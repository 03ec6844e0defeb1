"""kvcs: publish the KV cache of a language model once, and take it anywhere."""
