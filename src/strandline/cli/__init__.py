"""The command line: one small module per command family. It prints and never decides."""
