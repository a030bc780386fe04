"""PyTorch models: from what a user named to a module, and to ONNX.

Lives here: all that imports PyTorch, timm, torchvision or transformers for a model. May not be here: engines.
"""
