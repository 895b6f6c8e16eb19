"""One file a score; every module here is imported when a score is first looked up."""
