"""From scores to masks: scopes, schedules, pace."""
