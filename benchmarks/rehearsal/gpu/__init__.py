"""Cases that are rehearsed first and measured on GPUs afterwards."""
