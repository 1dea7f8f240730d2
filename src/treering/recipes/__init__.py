"""Ready recipes: `treering run NAME`. What a file leaves out has the default, which is the paper's for CIFAR-100."""
