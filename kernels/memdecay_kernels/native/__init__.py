"""The native CPU library: C++ for several instruction sets in one shared object, chosen at run time."""
