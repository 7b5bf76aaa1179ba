"""The command line: parser, dispatch, errors and exit codes. The only package that knows argparse.

Imports everything; nothing imports it but `__main__`.
"""
