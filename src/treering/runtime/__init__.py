"""What the machine brings: files, threads, signals, random numbers and memory."""
