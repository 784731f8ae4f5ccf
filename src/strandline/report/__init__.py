"""What people look at: why a row is as it is, whether a machine is fit."""
