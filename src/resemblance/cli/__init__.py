"""The command `resemblance`: each subcommand is a thin shell around one public function."""
