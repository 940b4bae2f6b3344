"""One workload under several presets: simulated, measured, plotted, compared with live runs."""
