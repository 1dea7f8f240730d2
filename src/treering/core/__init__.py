"""The paper: network, losses, memory, augmentation, optimiser, training. It knows no users, files or terminals."""
