"""FFI custom calls for hosts: C++ sources and their loader."""
