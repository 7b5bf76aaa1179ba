"""What a launch would meet on this machine: one check each, with what to do where one fails."""
