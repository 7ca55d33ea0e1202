"""The adapters' commands of the program ``memdecay``; light to import, for the program loads them all."""
