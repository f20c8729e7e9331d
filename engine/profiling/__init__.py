"""What a run took beside what was predicted: spans, profile, prediction error, trace."""
