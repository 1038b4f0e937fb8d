"""Rules: features, protocol, conflicts, and rebasing a commit on a version."""
