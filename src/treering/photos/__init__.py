"""Models of people's own photos: what the commands `learn`, `info` and the like do."""
