"""One file an ablation; every module here is imported when one is first looked up."""
