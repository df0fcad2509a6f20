"""Networks that engines other than PyTorch run: one file each, against one small protocol."""
