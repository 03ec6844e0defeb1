"""kvcs moqt."""
