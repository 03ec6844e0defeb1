"""kvcs cli."""
