"""kvcs transport."""
