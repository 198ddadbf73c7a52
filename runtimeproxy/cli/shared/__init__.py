"""What commands share: flags, configuration, output, and the questions to the running proxy."""
