"""Where weights and KV lie: one arena, the granules that layers give to KV and take back."""
