"""The paper's tables and figures on models that can be loaded: `unweave reproduce`."""
