"""kvcs moqt.session."""
