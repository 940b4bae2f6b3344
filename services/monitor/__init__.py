"""The monitor: collects reports and reasons, suspects processes without progress, publishes the FleetView."""
