"""The command line: parser, dispatch, errors and exit codes. The only package that uses argparse.

Imports every other package; only `__main__` imports it.
"""
