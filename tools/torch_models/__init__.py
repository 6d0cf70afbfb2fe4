"""Whole PyTorch models through `clew.frontends.torch`, compared with eager (docs/torch.md)."""
