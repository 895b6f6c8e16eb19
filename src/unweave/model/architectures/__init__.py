"""One file a family; every module here is imported when an architecture is first looked up."""
