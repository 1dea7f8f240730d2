"""Whatever people have, arrays, files or folders, as pixels."""
