"""One file a node kind; every module here is imported when a kind is first looked up."""
