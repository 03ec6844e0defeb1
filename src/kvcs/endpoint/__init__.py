"""kvcs endpoint."""
