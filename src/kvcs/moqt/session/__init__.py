"""The MOQT session as a pure state machine; start reading at `session`."""
