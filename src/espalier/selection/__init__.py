"""From scores to masks: scopes, exact counts, schedules, pace."""
