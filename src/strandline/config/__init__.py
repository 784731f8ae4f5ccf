"""The project file: read, rendered, checked. `load.load_project` is the way in."""
