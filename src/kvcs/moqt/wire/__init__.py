"""kvcs moqt.wire."""
