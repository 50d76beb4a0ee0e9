"""Other machines of a run: the hostfile, commands over ssh, and the files that come back."""
