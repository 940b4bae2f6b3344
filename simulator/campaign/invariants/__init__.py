"""The invariants of a campaign, each as a watcher of the cluster."""
