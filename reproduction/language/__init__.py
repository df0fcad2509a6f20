"""Language models, measured: which unit and which kernel show that a copy behaves differently."""
