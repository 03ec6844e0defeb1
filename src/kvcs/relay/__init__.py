"""kvcs relay."""
