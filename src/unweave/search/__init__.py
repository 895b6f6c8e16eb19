"""One file a search; every module here is imported when a search is first looked up."""
