"""Archives of images that no folder of pictures and no page can hold: found, cut into chunks, inspected into Parquet.

Everything here is plain functions on files, on this machine or in an object store; who calls them, and on how many
machines, is decided elsewhere.
"""
