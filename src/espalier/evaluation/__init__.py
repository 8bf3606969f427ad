"""What a model predicts, what it is worth and what it costs."""
