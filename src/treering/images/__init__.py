"""Whatever people have becomes pixels: image files, folders of them, arrays."""
