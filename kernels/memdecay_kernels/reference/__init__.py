"""The torch float32 definitions of the operations; every other implementation is tested against them."""
