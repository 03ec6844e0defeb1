"""kvcs moqt.track."""
