"""What a run looks like: the page, static figures and exports. Nothing here loads a model."""
