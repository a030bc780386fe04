"""Turn what a user names into artifacts: models, files, stored configurations, sides of a comparison."""
