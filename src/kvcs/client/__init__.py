"""kvcs client."""
