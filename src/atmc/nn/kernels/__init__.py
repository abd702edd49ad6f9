"""Hand-written GPU code of the networks: CUDA C++ for Hopper (compiled by `nvrtc.py`) and Triton kernels."""
