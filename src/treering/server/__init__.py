"""`treering serve`: models that a browser and other programs teach and ask."""
