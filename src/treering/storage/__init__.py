"""What survives a crash: model folders and unfinished trainings."""
