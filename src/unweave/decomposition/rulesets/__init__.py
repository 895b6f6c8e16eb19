"""One file a rule set; every module here is imported when a rule set is first looked up."""
