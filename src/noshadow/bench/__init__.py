"""The paper's eight settings, their tables and figures."""
