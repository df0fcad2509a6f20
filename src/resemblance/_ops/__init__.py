"""Tensor arithmetic that knows nothing of networks: what is done to vectors as they stream by.

Kernels packed for storage, Gram matrices, the CountSketch and the fold of wide vectors, each with
its GPU kernel where plain PyTorch is too slow. May import: errors and the private modules beside
them. Private: names here may change without notice.
"""
