"""The operator's commands, one module each; `marshal_py.cli` puts them together."""
